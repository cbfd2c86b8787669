#pragma once

#include "stagecraft/exported/json_field.h"
#include "stagecraft/exported/program_schema.h"

namespace stagecraft::exported {

/// Read the parts of a graph that torch.export wrote. `depth` is the number of graphs around the
/// part. FileError, with the path of the field, for text that is not such a part.

RawTensor tensor_of(const JsonField& field);
RawArgument argument_of(const JsonField& field, int depth);
RawNode node_of(const JsonField& field, int depth);
/// Reads everything of a graph except its nodes and tensors.
void read_graph_rest(const JsonField& field, RawGraph& graph, int depth);

}  // namespace stagecraft::exported
