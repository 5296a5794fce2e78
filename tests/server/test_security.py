"""Requests that must not be answered, and the headers of every response."""

import pytest

from scs_supcon.server.security import AccessRules, is_local


def test_only_the_names_of_this_computer_are_accepted(client):
    assert client.get("/healthz", host=f"localhost:{client.port}").status == 200
    for host in ("evil.example", "127.0.0.1:1", f"evil.example:{client.port}"):
        assert client.get("/healthz", host=host).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_pages_of_other_sites_cannot_change_anything(client, headers):
    body = b'{"images": [0], "label": null}'
    answer = client("POST", "/api/corrections", body, content_type="application/json", **headers)
    assert answer.status == 403
    assert client.get("/api/corrections").json()["rows"] == []


def test_the_own_page_may_send_requests(client):
    origin = f"http://127.0.0.1:{client.port}"
    answer = client(
        "POST", "/api/corrections/undo", b"{}", origin=origin, sec_fetch_site="same-origin"
    )
    assert answer.status == 200


def test_corrections_must_be_json(client):
    answer = client("POST", "/api/corrections", b"{}", content_type="text/plain")
    assert answer.status == 415


@pytest.mark.parametrize(
    "path", ["/", "/data", "/train", "/api/model", "/static/app.css", "/nothing"]
)
def test_every_response_has_a_policy(client, path):
    answer = client.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert b"<script>" not in answer.body
    assert b" style=" not in answer.body


def test_a_token_is_needed_elsewhere(run_copy, serve):
    with serve(run_copy, token="secret", host="0.0.0.0") as client:
        assert client.get("/healthz").status == 200
        assert client.get("/api/model").status == 401
        assert client.get("/api/model", authorization="Bearer wrong").status == 401
        assert client.get("/api/model?token=wrong").status == 401
        assert client.get("/api/model", authorization="Bearer secret").status == 200
        redirect = client.get("/?token=secret")
        assert redirect.status == 303
        cookie = redirect.headers["set-cookie"]
        assert "httponly" in cookie.lower()
        assert client.get("/", cookie=cookie.partition(";")[0]).status == 200


def test_which_addresses_are_local():
    assert all(map(is_local, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_local, ("0.0.0.0", "192.168.1.2", "::", "example.org", "")))
    assert AccessRules.for_address("0.0.0.0", 1, "t").hosts is None
