# Writes the source that holds FILES as texts: cmake -DOUT=page.cpp "-DFILES=a.js;b.css" -P embed.cmake
# The script is all .js files in the order given, in one function.
set(template)
set(style)
set(script)
foreach(file ${FILES})
  file(READ "${file}" text)
  if(text MATCHES "\\)page\"|</script")
    if(NOT file MATCHES "\\.html$")
      message(FATAL_ERROR "${file} has a text in it that would end the script or the literal")
    endif()
  endif()
  # A literal each: compilers need not take one of more than 64 KiB.
  set(literal "R\"page(${text})page\"")
  if(file MATCHES "\\.html$")
    set(template "${literal}")
  elseif(file MATCHES "\\.css$")
    set(style "${literal}")
  else()
    string(APPEND script "    ${literal},\n")
  endif()
endforeach()
file(WRITE "${OUT}" "#include \"stagecraft/viz/page.h\"

namespace stagecraft::viz {
namespace {

constexpr std::string_view kScripts[] = {
${script}};

}  // namespace

std::string_view page_template() {
  return ${template};
}
std::string_view page_style() {
  return ${style};
}
std::span<const std::string_view> page_scripts() {
  return kScripts;
}

}  // namespace stagecraft::viz
")
