# cmake -D IN=FILE -D OUT=FILE.cpp -D HEADER=INCLUDE -D SYMBOL=NAME -P EmbedFile.cmake
# Writes a source file that defines `const std::string_view SYMBOL` (namespace baton::app) with the bytes of IN.
file(READ "${IN}" hex HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
file(WRITE "${OUT}" "// Made by cmake/EmbedFile.cmake.
#include \"${HEADER}\"

namespace baton::app {
namespace {
const unsigned char kBytes[] = {
${bytes}};
}  // namespace
const std::string_view ${SYMBOL}(reinterpret_cast<const char*>(kBytes), sizeof(kBytes));
}  // namespace baton::app
")
