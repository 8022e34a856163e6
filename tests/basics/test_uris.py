"""URIs of storages: no secret is shown or accepted, and names of runs are read from them as they were written."""

import json
import os
import sys

import pytest

pytest.importorskip("pyarrow", reason="the extra storage")

from ding_lite.basics import StorageError, command_line, is_uri, open_storage, shown_text, shown_uri, without_place

_SECRETS = [
    "s3://AKIA:SECRET@bucket/x",
    "s3://AKIA:ab/cdSECRET@bucket/x",
    "s3://AKIA:SE#SECRET@bucket/x",
    "s3://AKIA:SE?SECRET@bucket/x",
    "s3://AKIA:SEC%2FSECRET@bucket/x",
    "s3:/AKIA:SECRET@bucket/x",
    "abfs://:SECRET@account.blob.core.windows.net/container",
    "abfs://container@account.dfs.core.windows.net/path?sv=1&sig=a@bSECRET",
    "abfs://container@account.dfs.core.windows.net/path?client_secret=SECRET&tenant_id=t",
    "s3://bucket/x?access_key=SECRET",
    "gs://bucket?json_credentials=SECRET",
    "hdfs://user@host:1/x?token=SECRET",
    "foo://user/x?sv=1;password=SECRET",
    "simplecache::s3://AKIA:SECRET@bucket/x",
    "zip://file.zip::s3://AKIA:SECRET@bucket/x",
]


@pytest.mark.parametrize("uri", _SECRETS)
def test_a_secret_is_refused_and_not_shown(uri):
    with pytest.raises(StorageError, match="would be written to config.json. Leave it out: .* in its environment") as caught:
        open_storage(uri)
    assert "SECRET" not in str(caught.value)
    assert "SECRET" not in shown_uri(uri)


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("foo://SECRET@host/x", "foo://***@host/x"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("hdfs://host:8020/a@b", "hdfs://host:8020/a@b"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("s3://bucket/x?region=eu&scheme=http", "s3://bucket/x?region=***&scheme=***"),
        ("s3://bucket/x?SECRET", "s3://bucket/x?***"),
        ("runs/a?b=c", "runs/a?b=c"),
    ],
)
def test_a_uri_is_shown_without_user_and_values(uri, shown):
    assert shown_uri(uri) == shown
    assert shown_text(f"cannot open {uri}, and no other") == f"cannot open {shown}, and no other" or "?" in uri


def test_an_unknown_scheme_and_an_error_of_a_filesystem_are_shown_without_secrets(tmp_path):
    with pytest.raises(StorageError, match=r"storage_path='foo://\*\*\*@host/x': neither") as caught:
        open_storage("foo://SECRET@host/x")
    assert "SECRET" not in str(caught.value)
    assert shown_text("no reply from https://u:SECRET@host/x?a=SECRET (404)") == "no reply from https://***@host/x?a=*** (404)"


def test_the_command_is_recorded_without_secrets(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["python", "dqn.py", "--storage-path=s3://u:SECRET@b/x", "--max-step", "5"])
    assert command_line() == "python dqn.py '--storage-path=s3://***@b/x' --max-step 5"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("file:/tmp/x", "a URI has '://'. Write file:///tmp/x, or ./ before the name of a folder"),
        ("file:store", f"Write file://{os.getcwd()}/store"),
        ("s3:/bucket/x", "Write s3://bucket/x"),
        ("simplecache::s3://bucket/x", "chained filesystems are not supported"),
        ("file:///tmp/a#b", "write %23 in its place"),
        ("", "storage_path='' is empty"),
        (" ", "storage_path=' ' is empty"),
    ],
)
def test_what_looks_like_a_uri_is_no_folder_of_this_machine(path, words):
    with pytest.raises(StorageError) as caught:
        open_storage(path)
    assert words in str(caught.value)


def test_paths_are_no_uris():
    assert not any(map(is_uri, ("runs/dqn", "/mnt/nfs", "C:\\runs", "C:/runs", "./file:x", "runs:1", "runs/a:b")))
    assert all(map(is_uri, ("s3://b", "S3://b", "file:x", "file:/x", "aa::b://c")))


@pytest.mark.parametrize("name", ["a b", "a#b", "a?b=c", "a%20b", "ü", "a[1]", "a\\b", "a@b:c", "a&b", "a\nb", "..d/e"])
def test_the_uri_of_a_run_in_messages_leads_to_its_copy(tmp_path, name):
    storage = open_storage(f"file://{tmp_path}").at("runs").at(name)
    storage.put("run.json", json.dumps(name).encode())
    assert (tmp_path / "runs" / name / "run.json").is_file()
    assert json.loads(open_storage(storage.shown).read("run.json")) == name
    assert without_place(storage.shown, f"runs/{name}") == f"file://{tmp_path}"
    memory = open_storage("memory://uris").at(name)
    if set(name) & set("?["):
        with pytest.raises(StorageError, match="cannot use memory://uris/.*: to fsspec, .* Choose an exp_name"):
            memory.require_writable()
    else:
        memory.put("run.json", b"content")
        assert open_storage(memory.shown).read("run.json") == b"content"


def test_a_query_stays_at_the_end():
    storage = open_storage("file:///tmp?region=eu").at("runs/dqn")
    assert storage.shown == "file:///tmp/runs/dqn?region=***"
    assert without_place("s3://bucket/all/runs/dqn/?region=eu", "runs/dqn") == "s3://bucket/all?region=eu"
    assert without_place("s3://bucket/all/runs/dqn", "other/dqn") is None
