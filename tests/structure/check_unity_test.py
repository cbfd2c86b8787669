"""The checker of unity builds must find each kind of name that clashes, and nothing in sources that fit together."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_unity


def source(*lines):
    return "namespace stagecraft {\nnamespace {\n" + "\n".join(lines) + "\n}  // namespace\n}  // namespace stagecraft\n"


def clashing(one, other):
    return [name for name, _ in check_unity.clashes({"one.cpp": one, "other.cpp": other})]


class CheckUnity(unittest.TestCase):
    def test_finds_every_kind_of_declaration(self):
        for declaration, name in {
                "constexpr int kWidth = 3;": "kWidth",
                "constexpr std::array<int, 2> kPairs{1, 2};": "kPairs",
                'const char* const kNames[] = {"a", "b"};': "kNames",
                "struct Case {\n  int width = 1;\n};": "Case",
                "enum class Kind { kOne };": "Kind",
                "class Planner final : public Base {\n};": "Planner",
                "int twice(int x) {\n  return 2 * x;\n}": "twice",
                "template <typename T, typename U = std::vector<T>>\nT first(const U& u) {\n  return u[0];\n}": "first",
                "[[noreturn]] void fail(const std::string& path);": "fail",
                "std::map<std::string, int> table(int n) {\n  return {};\n}": "table",
                "const auto maker = [](int x) { return x; };": "maker",
        }.items():
            with self.subTest(declaration):
                self.assertEqual(clashing(source(declaration), source(declaration)), [name])

    def test_functions_with_other_arguments_clash(self):
        self.assertEqual(clashing(source("void check(int x) {}"), source("void check(double x) {}")), ["check"])

    def test_static_functions_and_macros_clash(self):
        self.assertEqual(clashing("static int twice(int x) {\n  return 2 * x;\n}\n", source("int twice = 3;")), ["twice"])
        self.assertEqual(clashing("#define SC_X 1\n", "#define SC_X 2\n"), ["SC_X"])
        self.assertEqual(clashing("#define SC_X 1\n#undef SC_X\n", "#define SC_X 2\n"), [])

    def test_aliases_may_say_the_same(self):
        same = source("using Json = nlohmann::json;", "namespace fs = std::filesystem;")
        self.assertEqual(clashing(same, same), [])
        self.assertEqual(clashing(same, source("using Json = nlohmann::ordered_json;")), ["Json"])

    def test_what_is_inside_something_does_not_clash(self):
        text = source("int one_PLACE() {\n  const int inner = 3;\n  struct Local {};\n  return inner;\n}",
                      "// int commented = 1;", 'const char* text_PLACE = "int quoted = 1;";', "Case_PLACE::Case_PLACE() = default;",
                      "TEST(Verify, Works) {\n  int x = 1;\n}")
        self.assertEqual(clashing(text.replace("PLACE", "a"), text.replace("PLACE", "b")), [])

    def test_what_is_outside_of_unnamed_namespaces_is_the_linkers_affair(self):
        text = "namespace stagecraft {\nint f(int x) {\n  return x;\n}\n}\n"
        self.assertEqual(clashing(text, text), [])


if __name__ == "__main__":
    unittest.main()
