// `baton serve`: the composition root. Builds the parts that the role needs, joins them by queues,
// runs until a signal, drains.
#pragma once

#include "apps/baton/options.h"

namespace baton::app {

// Exit code of the process. Throws StartupError for an operator's mistake.
int run_serve(const ServeOptions& options);

}  // namespace baton::app
