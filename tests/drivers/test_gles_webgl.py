"""Every ESSL 1.00 text is taken by a context that enforces Appendix A of the specification.

Other software drivers accept loops and indices that devices of OpenGL ES 2.0 need not.
"""

from __future__ import annotations

import json
from pathlib import Path

import essl_corpus
import pytest
from gles_child import run

pytestmark = pytest.mark.driver


def test_every_text_is_taken(tmp_path: Path) -> None:
    texts = dict(essl_corpus.corpus("essl100"))
    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts))
    run("gles20-angle", ("webgl", {"file": str(file)}))
