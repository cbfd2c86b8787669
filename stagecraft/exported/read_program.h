#pragma once

#include <map>
#include <string>
#include <string_view>

#include "stagecraft/exported/program_schema.h"

namespace stagecraft::exported {

/// Reads a program that torch.export wrote. FileError, with the path in the text, for text that is
/// not a program, and for kinds of inputs and outputs that are not supported (objects, tokens,
/// gradients). Nodes are read one by one, so that memory depends on the size of the program, not of
/// its text.
RawProgram read_program(std::string_view json, const std::string& what);

/// Reads the list of weights or constants of a program, by their names in the model.
std::map<std::string, RawPayload> read_payloads(std::string_view json, const std::string& what);

}  // namespace stagecraft::exported
