#pragma once

#include <map>
#include <string>
#include <string_view>

#include "stagecraft/exported/program_schema.h"

namespace stagecraft::exported {

/// Reads a program as torch.export writes it. FileError, with the place in the text, for what is
/// none, and for kinds of inputs and outputs that a model to be trained or run cannot have
/// (objects, tokens, gradients). Nodes are taken in one by one, so that memory is bounded by what a
/// program needs and not by its text.
RawProgram read_program(std::string_view json, const std::string& what);

/// Reads the list of weights or constants of a program, by their names in the model.
std::map<std::string, RawPayload> read_payloads(std::string_view json, const std::string& what);

}  // namespace stagecraft::exported
