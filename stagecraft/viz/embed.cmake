# Writes the source that holds FILES as texts: cmake -DOUT=page.cpp "-DFILES=a.js;b.css" -P embed.cmake
# Scripts keep their order; those whose name begins with report_ are the report's alone.
set(scripts)
set(report_scripts)
foreach(file ${FILES})
  file(READ "${file}" text)
  get_filename_component(name "${file}" NAME)
  if(text MATCHES "\\)page\"|</script")
    if(NOT name MATCHES "\\.html$")
      message(FATAL_ERROR "${file} has a text in it that would end the script or the literal")
    endif()
  endif()
  # A literal each: compilers need not take one of more than 64 KiB.
  set(literal "R\"page(${text})page\"")
  if(name MATCHES "^report_.*\\.js$")
    string(APPEND report_scripts "    ${literal},\n")
  elseif(name MATCHES "\\.js$")
    string(APPEND scripts "    ${literal},\n")
  else()
    set("${name}" "${literal}")
  endif()
endforeach()
file(WRITE "${OUT}" "#include \"stagecraft/viz/page.h\"

namespace stagecraft::viz {
namespace {

constexpr std::string_view kScripts[] = {
${scripts}};
constexpr std::string_view kReportScripts[] = {
${report_scripts}};

}  // namespace

std::string_view page_template() {
  return ${page.html};
}
std::string_view report_template() {
  return ${report.html};
}
std::string_view sections_template() {
  return ${sections.html};
}
std::string_view timeline_markup() {
  return ${timeline.html};
}
std::string_view page_style() {
  return ${style.css};
}
std::string_view report_style() {
  return ${report.css};
}
std::span<const std::string_view> page_scripts() {
  return kScripts;
}
std::span<const std::string_view> report_scripts() {
  return kReportScripts;
}

}  // namespace stagecraft::viz
")
