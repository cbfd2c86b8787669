#include "stagecraft/exported/exported_archive.h"

#include <algorithm>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/jit/serialization/pickle.h>

#include "stagecraft/base/check.h"
#include "stagecraft/base/error.h"
#include "stagecraft/exported/import_program.h"
#include "stagecraft/exported/payload.h"
#include "stagecraft/exported/read_program.h"
#include "stagecraft/exported/zip_file.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/dead_code.h"
#include "stagecraft/graph/passes/run_pass.h"

namespace stagecraft {

namespace {

constexpr std::string_view kModels = "models/";
constexpr std::string_view kJson = ".json";
constexpr std::string_view kExtra = "extra/";

std::string program_file(const std::string& program) {
  return fmt::format("{}{}{}", kModels, program, kJson);
}

/// The arguments from (args, kwargs), the form in which Python pickled them.
Arguments to_arguments(const c10::IValue& value) {
  require<Error>(value.isTuple() && value.toTupleRef().elements().size() == 2 &&
                     value.toTupleRef().elements()[0].isTuple() &&
                     value.toTupleRef().elements()[1].isGenericDict(),
                 "expected a tuple of arguments and a dict");
  Arguments result;
  const auto& both = value.toTupleRef().elements();
  for (const c10::IValue& each : both[0].toTupleRef().elements()) result.args.push_back(each);
  for (const auto& entry : both[1].toGenericDict()) {
    result.kwargs.set(entry.key().toStringRef(), entry.value());
  }
  return result;
}

}  // namespace

class ExportedArchive::Impl {
 public:
  explicit Impl(const std::string& path) : file_(path) {
    require_format();
    for (const std::string& name : file_.names()) {
      if (!name.starts_with(kModels) || !name.ends_with(kJson)) continue;
      programs_.push_back(name.substr(kModels.size(), name.size() - kModels.size() - kJson.size()));
    }
    if (programs_.empty()) file_.fail("contains no program");
  }

  const std::vector<std::string>& programs() const { return programs_; }

  struct Loaded {
    Graph graph;
    std::vector<std::string> warnings;
    std::string torch_version;
  };

  const Loaded& load(const std::string& wish) {
    const std::string program = choose(wish);
    const auto found = loaded_.find(program);
    if (found != loaded_.end()) return found->second;
    try {
      const std::string json = program_file(program);
      const exported::RawProgram raw = exported::read_program(file_.text(json), json);
      const exported::FilePayload payload(file_, program);
      exported::ImportedProgram imported = exported::import_program(raw, payload);
      Loaded made{run_pass(std::move(imported.parts), without_dead_code),
                  std::move(imported.warnings), raw.torch_version};
      return loaded_.emplace(program, std::move(made)).first->second;
    } catch (const GraphError& error) {
      throw GraphError(with_path(error.what()));
    } catch (const Error& error) {
      throw FileError(with_path(error.what()));
    } catch (const std::exception&) {
      throw FileError(with_path(describe(std::current_exception())));
    }
  }

  Arguments example(const std::string& wish) const {
    const std::string name = fmt::format("data/sample_inputs/{}.pt", choose(wish));
    const std::string_view bytes = file_.text(name);
    try {
      return to_arguments(torch::jit::pickle_load({bytes.begin(), bytes.end()}));
    } catch (const std::exception&) {
      file_.fail(fmt::format("{} cannot be read: {}", name, describe(std::current_exception())));
    }
  }

  std::vector<std::string> extra_files() const {
    std::vector<std::string> result;
    for (const std::string& name : file_.names()) {
      if (name.starts_with(kExtra)) result.push_back(name.substr(kExtra.size()));
    }
    return result;
  }

  std::span<const std::byte> extra_file(const std::string& name) const {
    return file_.member(std::string(kExtra) + name);
  }

 private:
  void require_format() const {
    if (!file_.has("archive_format") || file_.text("archive_format") != "pt2") {
      file_.fail("is not an archive of torch.export: it does not say that its format is pt2");
    }
    if (file_.has("byteorder") && file_.text("byteorder") != "little") {
      file_.fail("was written on a machine with a different byte order");
    }
  }

  std::string with_path(const std::string& message) const {
    if (message.starts_with(file_.path())) return message;
    return fmt::format("{}: {}", file_.path(), message);
  }

  std::string choose(const std::string& wish) const {
    if (wish.empty()) {
      if (programs_.size() == 1) return programs_.front();
      require<ArgumentError>(std::ranges::count(programs_, "model") > 0,
                             "{}: expected the name of one of its {} programs: {}", file_.path(),
                             programs_.size(), fmt::join(programs_, ", "));
      return "model";
    }
    require<ArgumentError>(std::ranges::count(programs_, wish) > 0,
                           "{}: there is no program '{}', only {}", file_.path(), wish,
                           fmt::join(programs_, ", "));
    return wish;
  }

  exported::ZipFile file_;
  std::vector<std::string> programs_;
  std::map<std::string, Loaded> loaded_;
};

ExportedArchive::ExportedArchive(const std::string& path) : impl_(std::make_unique<Impl>(path)) {}
ExportedArchive::~ExportedArchive() = default;
ExportedArchive::ExportedArchive(ExportedArchive&&) noexcept = default;
ExportedArchive& ExportedArchive::operator=(ExportedArchive&&) noexcept = default;

const std::vector<std::string>& ExportedArchive::programs() const {
  return impl_->programs();
}

Graph ExportedArchive::graph(const std::string& program) const {
  return impl_->load(program).graph;
}

std::vector<std::string> ExportedArchive::warnings(const std::string& program) const {
  return impl_->load(program).warnings;
}

std::string ExportedArchive::torch_version(const std::string& program) const {
  return impl_->load(program).torch_version;
}

Arguments ExportedArchive::example(const std::string& program) const {
  return impl_->example(program);
}

std::vector<std::string> ExportedArchive::extra_files() const {
  return impl_->extra_files();
}

std::span<const std::byte> ExportedArchive::extra_file(const std::string& name) const {
  return impl_->extra_file(name);
}

Graph load_exported(const std::string& path) {
  return ExportedArchive(path).graph();
}

}  // namespace stagecraft
