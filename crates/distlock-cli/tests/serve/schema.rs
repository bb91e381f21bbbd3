//! The OpenAPI document describes what the daemon answers.

use serde_json::Value;

use crate::kit::{Daemon, Events};

/// Returns why `value` is not what the schema says. An object has no field that the schema does not name.
fn mismatch(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return mismatch(document, document.pointer(&reference[1..]).expect("a reference"), value);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let problems: Vec<_> = choices.iter().map(|choice| mismatch(document, choice, value)).collect();
        return if problems.contains(&None) { None } else { Some(format!("{problems:?}")) };
    }
    if let Some(words) = schema["enum"].as_array() {
        return (!words.contains(value)).then(|| format!("{value} is not one of {words:?}"));
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_u64() || number.is_i64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if !types.contains(&is) {
        return Some(format!("{value} is not {types:?}"));
    }
    if let Value::Array(items) = value {
        return items.iter().find_map(|item| mismatch(document, &schema["items"], item));
    }
    let (Value::Object(fields), Some(properties)) = (value, schema["properties"].as_object()) else { return None };
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let missing = required.into_iter().find(|field| !fields.contains_key(*field));
    if let Some(field) = missing {
        return Some(format!("{field} is missing in {value}"));
    }
    fields.iter().find_map(|(field, value)| match properties.get(field) {
        None => Some(format!("{field} is not described")),
        Some(schema) => mismatch(document, schema, value).map(|problem| format!("{field}: {problem}")),
    })
}

#[test]
fn every_answer_is_as_the_document_says() {
    let daemon = Daemon::start("mem://");
    let document = daemon.send("GET", "/v1/openapi.json", "").json;
    let check = |method: &str, template: &str, path: &str, body: &str, status: u16| {
        let answer = daemon.send(method, path, body);
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        let operation = &document["paths"][template][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {template}");
        let responses = &operation["responses"];
        let known = responses.get(status.to_string()).unwrap_or(&responses["default"]);
        let known = known["$ref"].as_str().map_or(known, |reference| document.pointer(&reference[1..]).unwrap());
        let schema = &known["content"]["application/json"]["schema"];
        assert!(schema.is_object() || answer.text.is_empty() || template == "/metrics", "{method} {template}");
        assert_eq!(mismatch(&document, schema, &answer.json), None, "{method} {template}");
        answer.json
    };
    let (locks, lock) = ("/v1/locks", "/v1/locks/{name}");
    let hold = check("POST", lock, "/v1/locks/a", r#"{"silence": "60s", "label": "x"}"#, 201);
    check("POST", lock, "/v1/locks/s", r#"{"silence": "60s", "slots": 3}"#, 201);
    check("POST", lock, "/v1/locks/a", r#"{"try": true}"#, 423);
    check("POST", lock, "/v1/locks/a", r#"{"no": true}"#, 400);
    let _waiter = daemon.open("POST", "/v1/locks/a", &[], r#"{"silence": "60s"}"#);
    daemon.await_metric("distlock_serve_waiting", 1);
    check("GET", locks, "/v1/locks", "", 200);
    check("GET", lock, "/v1/locks/a", "", 200);
    check("GET", lock, "/v1/locks/free", "", 200);
    let id = hold["id"].as_str().unwrap();
    check("GET", "/v1/holds/{id}", &format!("/v1/holds/{id}"), "", 200);
    check("POST", "/v1/holds/{id}/alive", &format!("/v1/holds/{id}/alive"), "", 200);
    check("POST", "/v1/holds/{id}/extend", &format!("/v1/holds/{id}/extend"), r#"{"ttl": "20s"}"#, 200);
    let mut events = Events::open(&daemon, id);
    let held = events.next_of("held");
    assert_eq!(mismatch(&document, &document["components"]["schemas"]["HeldEvent"], &held), None);
    check("DELETE", "/v1/holds/{id}", &format!("/v1/holds/{id}"), "", 204);
    check("DELETE", "/v1/holds/{id}", &format!("/v1/holds/{id}"), "", 404);
    check("GET", "/metrics", "/metrics", "", 200);
    check("GET", "/healthz", "/healthz", "", 200);
    check("GET", "/v1/openapi.json", "/v1/openapi.json", "", 200);
}

#[test]
fn an_answer_that_the_document_does_not_describe_is_noticed() {
    let document =
        serde_json::json!({"a": {"type": "object", "required": ["x"], "properties": {"x": {"type": "integer"}}}});
    let problem = |value: Value| mismatch(&document, &serde_json::json!({"$ref": "#/a"}), &value);
    assert_eq!(problem(serde_json::json!({"x": 1})), None);
    for bad in [serde_json::json!({}), serde_json::json!({"x": "1"}), serde_json::json!({"x": 1, "y": 2})] {
        assert!(problem(bad.clone()).is_some(), "{bad}");
    }
}
