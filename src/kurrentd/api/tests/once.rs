//! `Idempotency-Key`, as a client that loses answers uses it.

use super::*;

const KEY: &str = "Idempotency-Key";

#[tokio::test]
async fn the_same_key_with_the_same_request_gets_the_first_answer_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let api = server_in(folder).await;
    let body = json!({"worker_id": "w1"}).to_string();
    let first = api.ask_with("POST", "/v1/workers", &[(KEY, "k1")], &body).await;
    assert_eq!(first.0, 201);
    let generation = api.shared.ledger.snapshot().generation;
    for _ in 0..2 {
        assert_eq!(api.ask_with("POST", "/v1/workers", &[(KEY, "k1")], &body).await, first);
    }
    let refused = api.ask_with("POST", "/v1/workers", &[(KEY, "k2")], &body).await;
    assert_eq!((refused.0, refused.1["code"].as_str()), (409, Some("worker_exists")));
    assert_eq!(api.ask_with("POST", "/v1/workers", &[(KEY, "k2")], &body).await, refused, "a refusal is an answer too");
    for (path, body) in [("/v1/workers", json!({"worker_id": "w2"})), ("/v1/devices", json!({"worker_id": "w1"}))] {
        let (status, answer) = api.ask_with("POST", path, &[(KEY, "k1")], &body.to_string()).await;
        assert_eq!((status, answer["code"].as_str()), (422, Some("idempotency_key_reused")), "{answer}");
    }
    assert_eq!(api.shared.ledger.snapshot().generation, generation, "nothing was done twice");
    assert!(path.join("state/idempotency.jsonl").exists());
}

#[tokio::test]
async fn keys_of_an_odd_form_are_refused_and_other_methods_do_not_look() {
    let api = server().await;
    let body = json!({"worker_id": "w1"}).to_string();
    for key in ["", " ", "a b", "ä", "\u{7f}", &"k".repeat(256)] {
        let (status, answer) = api.ask_with("POST", "/v1/workers", &[(KEY, key)], &body).await;
        assert!(status == 400, "{key:?}: {status} {answer}");
    }
    let (status, answer) = api.ask_with("POST", "/v1/workers", &[(KEY, "a"), (KEY, "b")], &body).await;
    assert_eq!((status, answer["code"].as_str()), (400, Some("idempotency_key_invalid")));
    assert_eq!(api.shared.ledger.snapshot().generation, 0);
    assert_eq!(api.ask_with("GET", "/v1/workers", &[(KEY, "a b")], "").await.0, 200);
    assert_eq!(api.ask_with("POST", "/v1/workers", &[(KEY, &"k".repeat(255))], &body).await.0, 201);
}

#[tokio::test]
async fn what_asks_at_the_same_time_with_one_key_is_done_once() {
    let api = server().await;
    let asks = (0..8).map(async |_| api.ask_with("POST", "/v1/workers", &[(KEY, "k")], "{\"worker_id\":\"w1\"}").await);
    for (status, answer) in futures_util::future::join_all(asks).await {
        assert!(status == 201 || (status == 409 && answer["code"] == "in_progress"), "{status} {answer}");
    }
    assert_eq!(api.shared.ledger.snapshot().generation, 1);
}
