"""Reads the text of a graph (`to_text(const Graph&)` in C++): sizes, states, inputs, operators, outputs.

The elements of tensors are not part of the text. The grammar is that of stagecraft/graph/graph_text.h.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from .errors import CompileError
from .sizes import GraphSize, Rule, SizeExpr

__all__ = ["Autocast", "Graph", "Node", "State", "Value", "ValueRef", "parse_graph"]

_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$#+*<>@~|^&;?!")
_NUMBER = frozenset("0123456789.eE+-")
_EXPR = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-* ")


@dataclasses.dataclass(frozen=True)
class ValueRef:
    """A tensor of the graph, as an argument."""

    name: str


@dataclasses.dataclass(frozen=True)
class Value:
    """What the text says about a tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[SizeExpr, ...]
    is_open: bool  # a dimension depends on elements
    memory: int  # values with the same number, 0 or more, may share memory


@dataclasses.dataclass(frozen=True)
class State:
    """A tensor that the graph holds."""

    kind: str  # parameter, buffer, constant
    value: Value

    @property
    def name(self) -> str:
        return self.value.name


@dataclasses.dataclass(frozen=True)
class Autocast:
    """The autocast state around an operator."""

    dtype: torch.dtype
    is_enabled: bool


@dataclasses.dataclass
class Node:
    """One call of an operator. `results`: names, None, or lists of them."""

    name: str
    op: str  # aten::add.Tensor
    arguments: list[tuple[str, Any]]
    results: list[Any]
    is_no_grad: bool = False
    autocast: Autocast | None = None
    scope: str = ""
    has_branches: bool = False


@dataclasses.dataclass
class Graph:
    """A graph. `inputs` and `outputs` are the leaves: ValueRef, SizeExpr or a fixed value."""

    sizes: list[GraphSize] = dataclasses.field(default_factory=list)
    values: dict[str, Value] = dataclasses.field(default_factory=dict)
    states: list[State] = dataclasses.field(default_factory=list)
    inputs: list[Any] = dataclasses.field(default_factory=list)
    num_args: list[int] = dataclasses.field(default_factory=list)  # leaves of each positional argument
    nodes: list[Node] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)
    is_exported: bool = False

    def size(self, name: str) -> GraphSize:
        return next(size for size in self.sizes if size.name == name)


def dtype_of(name: str) -> torch.dtype | None:
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


class _Reader:
    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.at = 0
        self.where = where
        self.graph = Graph()

    # Tokens ----------------------------------------------------------------------------------------

    def fail(self, message: str) -> CompileError:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        return CompileError(f"{self.where}, line {line}, column {column}: {message}")

    def peek(self) -> str:
        return self.text[self.at] if self.at < len(self.text) else ""

    def accept(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise self.fail(f"expected {word!r}, got {self.text[self.at : self.at + 12]!r}")

    def blanks(self) -> None:
        while self.peek() == " ":
            self.at += 1

    def run_of(self, characters: frozenset[str]) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in characters:
            self.at += 1
        return self.text[start : self.at]

    def word(self) -> str:
        start = self.at
        while self.peek().isalnum() or self.peek() == "_":
            self.at += 1
        return self.text[start : self.at]

    def name(self) -> str:
        found = self.run_of(_NAME)
        if not found:
            raise self.fail(f"expected a name, got {self.peek()!r}")
        return found

    def rest_of_line(self) -> str:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        found = self.text[self.at : end]
        self.at = end
        return found

    def end_line(self) -> None:
        self.blanks()
        if self.at < len(self.text):
            self.expect("\n")
        while self.peek() in (" ", "\n") and self.peek():
            self.at += 1

    def quoted(self) -> str:
        self.expect('"')
        out = bytearray()
        while True:
            c = self.peek()
            if not c:
                raise self.fail("expected a closing '\"'")
            self.at += 1
            if c == '"':
                return out.decode("utf-8", "replace")
            if c != "\\":
                out += c.encode()
                continue
            escape = self.peek()
            self.at += 1
            if escape == "n":
                out += b"\n"
            elif escape == "x":
                out.append(int(self.text[self.at : self.at + 2], 16))
                self.at += 2
            else:
                out += escape.encode()

    def expression(self) -> SizeExpr:
        start = self.at
        text = self.run_of(_EXPR)
        found = SizeExpr.parse(text.rstrip())
        if found is None:
            self.at = start
            raise self.fail(f"expected a number or sizes, got {text!r}")
        self.at = start + len(text.rstrip())
        return found

    # Parts -----------------------------------------------------------------------------------------

    def read(self) -> Graph:
        self.expect("graph")
        self.graph.is_exported = self.accept(" exported")
        self.end_line()
        while self.accept("size "):
            self.read_size()
        while self.accept("require "):
            self.rest_of_line()
            self.end_line()
        while any(self.accept_state(kind) for kind in ("parameter", "buffer", "constant")):
            pass
        self.expect("args ")
        self.read_tree(self.read_input, self.graph.num_args)
        self.end_line()
        self.expect("kwargs ")
        self.read_tree(self.read_input)
        self.end_line()
        while not self.accept("return "):
            self.read_node()
        self.read_tree(lambda: self.graph.outputs.append(self.argument(None)))
        self.end_line()
        return self.graph

    def read_size(self) -> None:
        name = self.word()
        self.expect(" = ")
        example = int(self.run_of(frozenset("-0123456789")))
        if self.accept(", as "):
            rule = Rule.parse(self.rest_of_line())
            if rule is None:
                raise self.fail(f"size {name} has an unknown rule")
            size = GraphSize(name, example, rule=rule)
        elif self.accept(", from %"):
            size = GraphSize(name, example, measured=self.rest_of_line())
        else:
            self.expect(", at least ")
            least = int(self.run_of(frozenset("-0123456789")))
            greatest = int(self.run_of(frozenset("0123456789"))) if self.accept(", at most ") else None
            size = GraphSize(name, example, least, greatest)
        self.end_line()
        self.graph.sizes.append(size)

    def accept_state(self, kind: str) -> bool:
        if not self.accept(kind + " %"):
            return False
        value = self.read_value(self.name())
        self.graph.states.append(State(kind, value))
        self.rest_of_line()
        self.end_line()
        return True

    def read_value(self, name: str) -> Value:
        """The type after a name and a colon."""
        self.expect(":")
        return self.read_type(name)

    def read_type(self, name: str) -> Value:
        self.blanks()
        word = self.word()
        dtype = dtype_of(word)
        if dtype is None:
            raise self.fail(f"expected a dtype, got {word!r}")
        self.expect("[")
        shape: list[SizeExpr] = []
        is_open = False
        self.blanks()
        while not self.accept("]"):
            if shape:
                self.expect(",")
            self.blanks()
            is_open |= self.accept("?")
            shape.append(self.expression())
        if self.accept("@"):
            self.run_of(frozenset("abcdefghijklmnopqrstuvwxyz0123456789_:"))
        memory = int(self.run_of(frozenset("0123456789"))) if self.accept(" &") else -1
        value = Value(name, dtype, tuple(shape), is_open, memory)
        if name in self.graph.values:
            raise self.fail(f"%{name} is made twice")
        self.graph.values[name] = value
        return value

    def read_tree(self, leaf: Any, counts: list[int] | None = None) -> None:
        """Reads the leaves of nested tuples, lists and dicts. `counts` gets the number of leaves of each
        child of the root."""
        self.blanks()
        close = {"(": ")", "[": "]", "{": "}"}.get(self.peek())
        if close is None:
            leaf()
            return
        is_dict = self.peek() == "{"
        self.at += 1
        while True:
            self.blanks()
            if self.accept(close):
                return
            if is_dict:
                self.quoted()
                self.blanks()
                self.expect(":")
            before = len(self.graph.inputs)
            self.read_tree(leaf)
            if counts is not None:
                counts.append(len(self.graph.inputs) - before)
            self.blanks()
            if not self.accept(","):
                self.expect(close)
                return

    def read_input(self) -> None:
        if self.accept("%"):
            name = self.name()
            self.read_value(name)
            self.graph.inputs.append(ValueRef(name))
        else:
            self.graph.inputs.append(self.argument(None))

    # Nodes -----------------------------------------------------------------------------------------

    def read_node(self) -> None:
        if self.at >= len(self.text):
            raise self.fail("expected 'return', got the end of the text")
        name = ""
        results: list[Any] = []
        word = ""
        if self.peek() not in ("%", "["):
            word = self.name()
        if word and word != "None" and not self.accept("::"):
            name, word = word, ""
            self.expect(":")
            self.blanks()
            if self.peek() not in ("%", "["):
                word = self.name()
                if word != "None":
                    self.expect("::")
        if not word or word == "None":
            results.append(None if word == "None" else self.read_result())
            self.blanks()
            while self.accept(","):
                self.blanks()
                results.append(self.read_result())
                self.blanks()
            self.expect("=")
            self.blanks()
            word = self.name()
            self.expect("::")
        if not name and results and isinstance(results[0], str):
            name = results[0]
        op = f"{word}::{self.word()}"
        if self.accept("."):
            op += "." + self.word()
        node = Node(name, op, [], results)
        self.expect("(")
        while True:
            self.blanks()
            if self.accept(")"):
                break
            if node.arguments:
                self.expect(",")
                self.blanks()
            formal = self.word()
            self.expect("=")
            node.arguments.append((formal, self.argument(formal)))
        self.blanks()
        if self.accept(":"):
            for i, result in enumerate(results):
                if i > 0:
                    self.expect(",")
                self.read_result_type(result)
        self.read_mode(node)
        self.end_line()
        if op == "stagecraft::cond":
            node.has_branches = True
            for _ in range(2):
                inner = _Reader(self.text, self.where)
                inner.at = self.at
                inner.read()
                self.at = inner.at
        self.graph.nodes.append(node)

    def read_result(self) -> Any:
        if self.accept("%"):
            return self.name()
        if self.accept("["):
            results: list[Any] = []
            while True:
                self.blanks()
                if self.accept("]"):
                    return results
                if results:
                    self.expect(",")
                    self.blanks()
                results.append(self.read_result())
        self.expect("None")
        return None

    def read_result_type(self, result: Any) -> None:
        self.blanks()
        if isinstance(result, str):
            self.read_type(result)
        elif isinstance(result, list):
            self.expect("[")
            for i, each in enumerate(result):
                if i > 0:
                    self.expect(",")
                self.read_result_type(each)
            self.expect("]")
        else:
            self.expect("None")

    def read_mode(self, node: Node) -> None:
        self.blanks()
        node.is_no_grad = self.accept("no_grad")
        self.blanks()
        if self.accept("autocast("):
            self.word()
            self.expect(",")
            self.blanks()
            dtype = dtype_of(self.word())
            assert dtype is not None
            is_enabled = not self.accept(", off")
            self.run_of(frozenset("abcdefghijklmnopqrstuvwxyz0123456789, "))
            self.expect(")")
            node.autocast = Autocast(dtype, is_enabled)
        self.blanks()
        if self.accept("in "):
            node.scope = self.name()

    # Arguments -------------------------------------------------------------------------------------

    def argument(self, formal: str | None) -> Any:
        """A ValueRef, a SizeExpr, a list, or a fixed value: number, string, None, dtype, device."""
        self.blanks()
        if self.accept("%"):
            name = self.name()
            if name not in self.graph.values:
                raise self.fail(f"%{name} is read before it is made")
            return ValueRef(name)
        if self.accept("["):
            items: list[Any] = []
            while True:
                self.blanks()
                if self.accept("]"):
                    return items
                if items:
                    self.expect(",")
                items.append(self.argument(formal))
        if self.peek() == '"':
            return self.quoted()
        if self.accept("device("):
            device = torch.device(self.quoted())
            self.expect(")")
            return device
        if self.accept("complex("):
            real = self.number()
            self.expect(",")
            self.blanks()
            imaginary = self.number()
            self.expect(")")
            return complex(real, imaginary)
        start = self.at
        word = self.word()
        if word in ("None", "undefined"):
            return None
        if word in ("True", "False"):
            return word == "True"
        if word in ("generator", "object"):
            raise self.fail(f"a {word} of the caller, which cannot be saved in a file")
        if word in ("inf", "nan"):
            return float(word)
        if word and not word[0].isdigit() and not any(size.name == word for size in self.graph.sizes):
            dtype = dtype_of(word)
            if dtype is None:
                self.at = start
                raise self.fail(f"expected an argument, got {word!r}")
            return dtype
        self.at = start
        if self.accept("-inf"):
            return float("-inf")
        token = self.run_of(_NUMBER)
        self.at = start
        if any(c.isdigit() for c in token) and any(c in ".eE" for c in token):
            return self.number()
        size = self.expression()
        number = size.number()
        return size if number is None else number

    def number(self) -> float:
        for word in ("nan", "inf", "-inf"):
            if self.accept(word):
                return float(word)
        token = self.run_of(_NUMBER)
        try:
            return float(token)
        except ValueError:
            raise self.fail(f"expected a number, got {token!r}") from None


def parse_graph(text: str, where: str) -> Graph:
    """`where` names the text in messages."""
    return _Reader(text, where).read()
