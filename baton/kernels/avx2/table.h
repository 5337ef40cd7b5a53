// This folder's functions; table.cpp puts them into the table.
#pragma once

#include "baton/kernels/kernels.h"

namespace baton::kernels::avx2 {
#include "baton/kernels/declare.inl"
}  // namespace baton::kernels::avx2
