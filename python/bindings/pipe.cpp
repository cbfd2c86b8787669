#include "stagecraft/partition/pipe.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include <torch/csrc/utils/pybind.h>

#include "python/bindings/python_call.h"
#include "python/bindings/values.h"
#include "stagecraft/base/check.h"
#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/exported/live_program.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/own_operators.h"
#include "stagecraft/partition/split.h"

namespace stagecraft::python {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

py::tuple read_program(const std::string& json, const Tensors& tensors) {
  LiveProgram program = [&] {
    const py::gil_scoped_release release;
    return read_live_program(json, tensors);
  }();
  return py::make_tuple(std::move(program.graph), program.warnings);
}

py::tuple read_archive(const std::string& path, const std::string& name) {
  const py::gil_scoped_release release;
  const ExportedArchive archive(path);
  Graph graph = archive.graph(name);
  std::vector<std::string> warnings = archive.warnings(name);
  const py::gil_scoped_acquire acquire;
  return py::make_tuple(std::move(graph), std::move(warnings));
}

Split split_of(const std::vector<std::pair<std::string, bool>>& points) {
  Split split;
  for (const auto& [name, is_end] : points) {
    split.points.emplace_back(name, is_end ? SplitPoint::kEnd : SplitPoint::kBeginning);
  }
  return split;
}

Pipe cut_at_points(const Graph& graph, const std::vector<std::pair<std::string, bool>>& points) {
  return Pipe(graph, split_of(points));
}

// The graph, split before the nodes with these names.
Pipe cut_before(const Graph& graph, const std::vector<std::string>& names) {
  Split split;
  split.policy = [&](const Graph& whole) {
    SplitPositions positions;
    const auto& nodes = whole.parts().nodes;
    for (const std::string& name : names) {
      std::size_t n = 0;
      while (n < nodes.size() && nodes[n].name != name) ++n;
      require<ArgumentError>(n < nodes.size(), "the graph has no node {}", name);
      positions.push_back(n);
    }
    return positions;
  };
  return Pipe(graph, split);
}

Pipe cut_evenly(const Graph& graph, int32_t stages) {
  Split split;
  split.policy = equal_cost(stages);
  return Pipe(graph, split);
}

// (kind, name, tensor, other names, is_persistent) of each state.
py::list states_of(const Graph& graph) {
  py::list states;
  for (const GraphState& state : graph.parts().states) {
    const char* const kind = state.kind == GraphState::Kind::kParameter ? "parameter"
                             : state.kind == GraphState::Kind::kBuffer  ? "buffer"
                                                                        : "constant";
    states.append(py::make_tuple(kind, graph.value(state.value).name, state.tensor,
                                 state.other_names, state.is_persistent));
  }
  return states;
}

py::dict ports_dict(const Ports& ports) {
  const auto input = [](const InputPort& port) {
    const py::object where =
        port.name.empty() ? py::object(py::int_(port.position)) : py::object(py::str(port.name));
    return py::make_tuple(port.stage.value(), where);
  };
  py::list connections;
  for (const Ports::Connection& each : ports.connections()) {
    connections.append(
        py::make_tuple(py::make_tuple(each.from.stage.value(), each.from.output), input(each.to)));
  }
  py::list feeds;
  for (const Ports::Feed& feed : ports.feeds()) {
    const py::object argument =
        feed.argument ? py::object(py::int_(*feed.argument)) : py::object(py::str(feed.name));
    feeds.append(py::make_tuple(argument, input(feed.to)));
  }
  py::dict result;
  result["stages"] = ports.num_stages();
  result["chain"] = ports.has_chain();
  result["connections"] = connections;
  result["feeds"] = feeds;
  return result;
}

py::object run(const GraphProgram& program, const py::tuple& args, const py::dict& kwargs) {
  const Arguments arguments = to_arguments(args, kwargs);
  c10::IValue output;
  {
    const py::gil_scoped_release release;
    output = program.run(arguments.args, arguments.kwargs);
  }
  return to_python(output);
}

// The sources of a stage's positional arguments: (stage, output), or the number of an argument of
// the model.
py::list sources_of(const Pipe& pipe, int32_t stage) {
  py::list sources;
  for (const StageSource& source : pipe.plan().stages.at(static_cast<std::size_t>(stage)).sources) {
    if (const auto* argument = std::get_if<FromArgument>(&source)) {
      sources.append(py::int_(argument->argument));
    } else {
      const auto& port = std::get<OutputPort>(source);
      sources.append(py::make_tuple(port.stage.value(), port.output));
    }
  }
  return sources;
}

py::list ties_list(const Pipe& pipe) {
  py::list ties;
  for (const TiedWeight& tie : pipe.ties()) {
    py::list group;
    for (const ParameterRef& ref : tie) group.append(py::make_tuple(ref.stage.value(), ref.name));
    ties.append(group);
  }
  return ties;
}

// The inverse of str(graph).
Graph graph_from_text(const std::string& text, const Tensors& tensors) {
  const py::gil_scoped_release release;
  return parse_graph(text, [&](const std::string& name) {
    const auto found = tensors.find(name);
    require<ArgumentError>(found != tensors.end(), "the graph has a tensor {}, which is not given",
                           name);
    return found->second;
  });
}

}  // namespace

void bind_pipe(py::module_& module) {
  register_own_operators();
  py::class_<Graph>(module, "Graph", "The operators of a model, as C++ runs them.")
      .def_static("parse", &graph_from_text)
      .def("states", &states_of)
      .def("with_tensors", &with_tensors)
      .def("nodes",
           [](const Graph& graph) {
             py::list nodes;
             for (const GraphNode& node : graph.parts().nodes) {
               nodes.append(py::make_tuple(node.name, node.op.name, node.scope));
             }
             return nodes;
           })
      .def("kwarg_names",
           [](const Graph& graph) {
             const TreeSpec& kwargs = graph.parts().kwargs;
             std::vector<std::string> names;
             for (std::size_t i = 0; i < kwargs.children().size(); ++i) {
               names.push_back(kwargs.key(i));
             }
             return names;
           })
      .def("__str__", [](const Graph& graph) { return to_text(graph); });
  py::class_<GraphProgram>(module, "GraphProgram", py::release_gil_before_calling_cpp_dtor())
      .def(py::init<Graph>())
      .def("run", &run);
  py::class_<Pipe>(module, "Pipe", "A model that is split into stages.")
      .def_static("at_points", &cut_at_points)
      .def_static("before", &cut_before)
      .def_static("evenly", &cut_evenly)
      .def_property_readonly("num_stages", &Pipe::num_stages)
      .def_property_readonly("graph", &Pipe::graph)
      .def("stage_graph", [](const Pipe& pipe, int32_t s) { return pipe.stage_graph(StageId(s)); })
      .def("sources", &sources_of)
      .def("ports", [](const Pipe& pipe) { return ports_dict(pipe.ports()); })
      .def("ties", &ties_list)
      .def("table", &Pipe::table)
      .def("call_text", &Pipe::call_text);
  module.def("read_program", &read_program);
  module.def("read_archive", &read_archive);
}

}  // namespace stagecraft::python
