"""Drivers to test with: software rasterisers that run everywhere, and one that only pretends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import daily
import pytest
from required import absent
from validation import log_in, messages, validated

from gpuedge.backends import load
from gpuedge.backends.base import Candidate, DeviceInfo
from gpuedge.backends.device import OpenDevice

ICD_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
CHROMIUM = Path("/usr/lib/chromium")
PACKAGES = {
    "lavapipe": "apt-get install -y mesa-vulkan-drivers libvulkan1",
    "swiftshader": "apt-get install -y chromium libvulkan1",
    "mock": "apt-get install -y chromium libvulkan1",
}


def missing(driver: str) -> None:
    """Skip the test, or fail where drivers are required."""
    words = f"the {driver} driver is not installed: {PACKAGES[driver]}"
    absent(words)


def candidate_for(manifest: Path) -> Candidate:
    """Return the candidate of one manifest."""
    return load("vulkan").candidates({"VK_DRIVER_FILES": str(manifest)})[0]


def lavapipe_candidate() -> Candidate:
    """Return Mesa's software driver."""
    found = [p for folder in ICD_FOLDERS for p in sorted(Path(folder).glob("lvp_icd*.json"))]
    if not found:
        missing("lavapipe")
    return candidate_for(found[0])


def swiftshader_candidate() -> Candidate:
    """Return Google's software driver."""
    manifest = CHROMIUM / "vk_swiftshader_icd.json"
    if not manifest.is_file():
        missing("swiftshader")
    return candidate_for(manifest)


CANDIDATES = {"lavapipe": lavapipe_candidate, "swiftshader": swiftshader_candidate}


@pytest.fixture(scope="session")
def lavapipe() -> Candidate:
    """Mesa's software driver."""
    return lavapipe_candidate()


@pytest.fixture(scope="session")
def swiftshader() -> Candidate:
    """Google's software driver."""
    return swiftshader_candidate()


@pytest.fixture(scope="session", params=sorted(CANDIDATES))
def vulkan_candidate(request: pytest.FixtureRequest) -> Candidate:
    """Each software driver in turn."""
    return CANDIDATES[request.param]()


IN_TURN = ("test_bounds_of_sums", "test_edges", "test_lang_compute", "test_nan", "test_replay",
           "test_user_kernel")  # fmt: skip
"""Files whose tests run on the one driver today and on the other tomorrow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the other driver to the long campaign where one is enough every day.

    Files of operations take the faster one: they are of the validation layer, of limits and of
    wrong kernels, which do not depend on the driver.
    """
    today = sorted(CANDIDATES)[daily.turn(len(CANDIDATES))]
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function):
            params = item.callspec.params if hasattr(item, "callspec") else {}
            driver = params.get("vulkan_candidate")
            if driver and item.path.stem in IN_TURN:
                item.add_marker(daily.mark(driver == today))
            elif driver == "swiftshader" and item.path.name.startswith("test_ops_"):
                item.add_marker(pytest.mark.long)


@pytest.fixture
def mock_icd(tmp_path: Path) -> Candidate:
    """A driver that accepts everything and computes nothing."""
    library = CHROMIUM / "libVkICD_mock_icd.so"
    if not library.is_file():
        missing("mock")
    manifest = tmp_path / "mock_icd.json"
    table = {"library_path": str(library), "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": table}))
    return candidate_for(manifest)


@pytest.fixture(autouse=True)
def _nothing_to_say() -> Iterator[None]:
    """Fail the test if the validation layer reported anything during it."""
    yield
    assert messages() == ""


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    log_in(tmp_path_factory.mktemp("validation"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUEDGE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def vulkan_info(vulkan_candidate: Candidate) -> DeviceInfo:
    """The first device of each driver."""
    return load("vulkan").enumerate(vulkan_candidate)[0]


@pytest.fixture(scope="session")
def vulkan_device(vulkan_info: DeviceInfo, _own_cache: None) -> Iterator[OpenDevice]:
    """Each driver's device, open under the validation layer with synchronisation validation."""
    device = validated(vulkan_info)
    yield device
    device.close()
