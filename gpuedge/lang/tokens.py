"""The words of the language, kernel text as tokens, and the one way errors point into the text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NoReturn

from gpuedge.core.errors import KernelSyntaxError
from gpuedge.lang.builtins import BUILTINS
from gpuedge.lang.tree import BASE

ACCESS: Final = {
    "load4": ("vec4", "ivec4"),
    "load4z": ("vec4", "ivec4"),
    "load1": ("float", "int"),
    "texel": ("vec4", "int"),
    "dims": ("ivec4", ""),
    "local_id": ("ivec3", ""),
    "group_id": ("ivec3", ""),
    "lane_id": ("int", ""),
    "lane_value": ("", ""),
}
"""Built-ins that reach outside: result, and type of the position. The result of `lane_value` is of
the type of what it takes."""

STORES: Final = {"store4": "ivec4", "storet": "int"}
"""Statements that write the out tensor: type of the position."""

KEYWORDS: Final = frozenset(
    {
        "kernel", "map", "group", "in", "out", "tensor", "const", "spec", "param", "shared",
        "local_size", "if", "else", "for", "unroll", "return", "true", "false", "void",
        "barrier", "main", "LX", "LY", "LZ",
    }
)  # fmt: skip
RESERVED: Final = KEYWORDS | BASE.keys() | BUILTINS.keys() | ACCESS.keys() | STORES.keys()
"""Names that a text cannot declare (LX, LY, LZ only as specs of a group kernel)."""

FULL: Final = {"half": "float", "hvec2": "vec2", "hvec3": "vec3", "hvec4": "vec4"}
"""What halves are in a kernel that is not to compute in float16."""

DEFAULT_EPILOGUE: Final = "vec4 epilogue(vec4 v, ivec4 p) { return v; }"

# Blank space and comments are stepped over, but for the comment that marks the epilogue's place.
# A number takes all letters and digits after it, so that 1.0f is one token, and a wrong one.
_HOOK = r"//[ \t]*EPILOGUE[ \t\r]*(?![^\n])"
_TOKEN = re.compile(
    rf"\s*(?:(?:(?!{_HOOK})//[^\n]*|/\*.*?\*/)\s*)*"
    r"([A-Za-z_]\w*"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*"
    rf"|{_HOOK}"
    r"|\+\+|>>=?|[-+*/%<>=!&]=|&&|\|\||[-+*/%<>=!?:;,.(){}\[\]&]"
    r"|.|\Z)",
    re.DOTALL | re.ASCII,
)
_HOOK_LINE = re.compile(_HOOK)
_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|(\d+)")
_KNOWN_FIRST = frozenset("-+*/%<>=!?:;,.(){}[]&|_") | frozenset(
    "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


class Cursor:
    """The tokens of a text, its epilogue spliced in at the line ``//EPILOGUE``, and a place there.

    Attributes
    ----------
    texts : list of str
        The tokens; the last one, the end, is empty.
    at : int
        Number of the token that comes next.
    """

    def __init__(self, text: str, filename: str, epilogue: str | None) -> None:
        self.text = text
        self.filename = filename
        self.epilogue = DEFAULT_EPILOGUE if epilogue is None else epilogue
        self.texts: list[str] = _TOKEN.findall(text)
        self.at = 0
        self.hook = -1  # number of the first token of the epilogue
        self.hook_end = -1
        self._check_characters(0)
        self._splice(given=epilogue is not None)

    def widen(self) -> None:
        """Read halves as floats."""
        if not FULL.keys().isdisjoint(self.texts):
            self.texts[:] = [FULL.get(text, text) for text in self.texts]

    def _check_characters(self, first: int) -> None:
        for token in {*self.texts[first:]}:
            if token and token[0] not in _KNOWN_FIRST:
                at = self.texts.index(token, first)
                self.fail(f"unexpected character {token!r}", at=at)

    def _splice(self, *, given: bool) -> None:
        has_hook = _HOOK_LINE.search(self.text)
        hooks = [i for i, token in enumerate(self.texts) if token[:2] == "//"] if has_hook else []
        if len(hooks) > 1:
            self.fail("//EPILOGUE may stand in one place only", at=hooks[1])
        if not hooks:
            if given:
                self.fail("an epilogue was given, but the text has no line //EPILOGUE", at=0)
            return
        inner = [token for token in _TOKEN.findall(self.epilogue) if token]
        self.hook, self.hook_end = hooks[0], hooks[0] + len(inner)
        self.texts[self.hook : self.hook + 1] = inner
        nested = next((i for i, token in enumerate(inner) if token[:2] == "//"), None)
        if nested is not None:
            self.fail("//EPILOGUE may stand in one place only", at=self.hook + nested)
        self._check_characters(self.hook)

    # --- errors -------------------------------------------------------------------------------
    def _place(self, at: int) -> tuple[str, str, int]:
        """Return the text that token `at` lies in, what errors call it, and the offset there."""
        text, name = self.text, self.filename
        if self.hook <= at < self.hook_end:
            text, name, at = self.epilogue, "epilogue", at - self.hook
        elif self.hook >= 0 and at >= self.hook_end:
            at -= self.hook_end - self.hook - 1
        starts = [match.start(1) for match in _TOKEN.finditer(text)]
        return text, name, starts[min(at, len(starts) - 1)]

    def fail(self, message: str, hint: str | None = None, *, at: int | None = None) -> NoReturn:
        """Raise KernelSyntaxError (GE-301) that shows token `at`, else the one that comes next."""
        text, name, offset = self._place(self.at if at is None else at)
        start = text.rfind("\n", 0, offset) + 1
        line = text[start:].split("\n", 1)[0].rstrip()
        # Tabs are kept, so that the caret stands under the column whatever a tab's width is.
        pad = "".join("\t" if c == "\t" else " " for c in text[start:offset])
        where = f"{name}:{text.count(chr(10), 0, offset) + 1}:{offset - start + 1}"
        raise KernelSyntaxError(f"{where}: {message}\n    {line}\n    {pad}^", hint=hint)

    def unexpected(self, message: str) -> NoReturn:
        """Fail at the next token, saying what it is."""
        word = self.texts[self.at]
        self.fail(f"{message}, found {repr(word) if word else 'the end'}")

    def unknown(self, name: str, at: int) -> NoReturn:
        """Fail because `name` is not declared."""
        self.fail(f"{name!r} is not declared", at=at)

    # --- steps --------------------------------------------------------------------------------
    def accept(self, text: str) -> bool:
        """Step over the token `text` if it comes next."""
        if self.texts[self.at] == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str, after: str) -> None:
        """Step over the token `text`, or fail."""
        if self.texts[self.at] != text:
            self.unexpected(f"expected '{text}' {after}")
        self.at += 1

    def new_name(self, what: str, names: Mapping[str, object]) -> str:
        """Step over a name that may be declared beside `names`."""
        at = self.at
        name = self.any_name(what)
        self.check_free(name, at, names)
        return name

    def check_free(self, name: str, at: int, names: Mapping[str, object]) -> None:
        """Fail if the name of token `at` is declared already."""
        if name in names:
            self.fail(f"{name!r} is already declared", at=at)

    def any_name(self, what: str) -> str:
        """Step over a name that the language allows."""
        name = self.texts[self.at]
        if not (name[:1].isalpha() or name[:1] == "_"):
            self.unexpected(f"expected a name for the {what}")
        if name in RESERVED:
            self.fail(f"{name!r} is a word of the language and cannot name a {what}")
        if name[0] == "_" or name[-1] == "_" or "__" in name or name.startswith("gl_"):
            self.fail(f"{name!r} cannot be a name")
        self.at += 1
        return name

    def check_number(self, text: str) -> bool:
        """Return whether the next token, `text`, is an int; fail if it is no float either."""
        match = _NUMBER.match(text)
        if match is None or match.end() != len(text):
            self.fail(f"{text!r} is no number")
        return match[1] is not None
