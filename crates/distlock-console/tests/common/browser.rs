//! A real browser, driven through chromedriver by https://www.w3.org/TR/webdriver.
#![allow(missing_docs, dead_code)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use distlock_testkit::servers::{Directory, Port, Process, find_program};
use serde_json::{Value, json};

use super::{HttpRequest, LIMIT};

/// Keys that are not characters, by their WebDriver codes.
pub(crate) const ENTER: &str = "\u{E007}";
pub(crate) const ESCAPE: &str = "\u{E00C}";
pub(crate) const DOWN: &str = "\u{E015}";

/// A browser with one window. Dropping it ends the browser.
pub(crate) struct Browser {
    session: String,
    port: Port,
    // Ended before its directory is removed.
    _driver: Process,
    _directory: Directory,
}

/// How long the driver may take to listen.
const START: Duration = Duration::from_secs(60);

impl Browser {
    pub(crate) async fn start() -> Browser {
        let (directory, port) = (Directory::new(), Port::free());
        let program = find_program("chromedriver", "chromium-driver");
        let chromium = find_program("chromium", "chromium");
        let home = directory.path().to_owned();
        let driver = Process::start(&program, &home.join("chromedriver.log"), |command| {
            command.arg(format!("--port={}", port.number())).env("HOME", &home).env("TMPDIR", &home);
        });
        let driver = driver.expect("chromedriver starts");
        let began = Instant::now();
        while tokio::net::TcpStream::connect(port.address()).await.is_err() {
            assert!(began.elapsed() < START, "chromedriver does not listen: {}", driver.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut browser = Browser { session: String::new(), port, _driver: driver, _directory: directory };
        let profile = format!("--user-data-dir={}", home.join("profile").display());
        // Through a pipe, so that the browser ends with its driver in every case.
        let flags = [
            "--remote-debugging-pipe",
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
        ];
        let quiet =
            ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
        let arguments: Vec<&str> = flags.into_iter().chain(quiet).chain([profile.as_str()]).collect();
        let options = json!({"binary": chromium, "args": arguments});
        let wish = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}});
        let session = browser.call("POST", "/session", &wish).await;
        browser.session = session["sessionId"].as_str().expect("a session").to_owned();
        browser.resize(1440, 900).await;
        browser
    }

    async fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let ask = HttpRequest::new(self.port.address(), method, path).header("Content-Type", "application/json");
        let answer = if body.is_null() { ask } else { ask.body(&body.to_string()) }.send().await;
        let value = answer.json()["value"].clone();
        assert_eq!(answer.status, 200, "{method} {path}: {value}");
        value
    }

    async fn post(&self, what: &str, body: Value) -> Value {
        self.call("POST", &format!("/session/{}/{what}", self.session), &body).await
    }

    pub(crate) async fn goto(&self, url: &str) {
        self.post("url", json!({"url": url})).await;
    }

    pub(crate) async fn reload(&self) {
        self.post("refresh", json!({})).await;
    }

    /// Returns the result of a script.
    pub(crate) async fn js(&self, script: &str) -> Value {
        self.post("execute/sync", json!({"script": script, "args": []})).await
    }

    /// Returns the value that a script passes to its callback.
    pub(crate) async fn js_async(&self, script: &str) -> Value {
        self.post("execute/async", json!({"script": script, "args": []})).await
    }

    /// Returns the text of the first matching element; empty when there is none.
    pub(crate) async fn text(&self, css: &str) -> String {
        let script = format!("return document.querySelector({})?.innerText ?? ''", Value::from(css));
        self.js(&script).await.as_str().unwrap_or_default().to_owned()
    }

    /// Returns the texts of all matching elements.
    pub(crate) async fn texts(&self, css: &str) -> Vec<String> {
        let script = format!("return [...document.querySelectorAll({})].map((it) => it.innerText)", Value::from(css));
        let texts = self.js(&script).await;
        texts.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
    }

    /// Clicks at the element's position: an element that covers it is hit instead.
    pub(crate) async fn click(&self, css: &str) {
        let found = self.post("element", json!({"using": "css selector", "value": css})).await;
        let id = found.as_object().and_then(|found| found.values().next()?.as_str()).expect("an element").to_owned();
        self.post(&format!("element/{id}/click"), json!({})).await;
    }

    /// Sends keys to the focused element.
    pub(crate) async fn press(&self, keys: &str) {
        let strokes: Vec<Value> = keys
            .chars()
            .flat_map(|key| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})])
            .collect();
        self.post("actions", json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]})).await;
    }

    pub(crate) async fn resize(&self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.devtools("Emulation.setDeviceMetricsOverride", size).await;
    }

    /// Sets the preferred colour scheme, light or dark.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let feature = json!({"name": "prefers-color-scheme", "value": scheme});
        self.devtools("Emulation.setEmulatedMedia", json!({"features": [feature]})).await;
    }

    async fn devtools(&self, command: &str, parameters: Value) {
        self.post("goog/cdp/execute", json!({"cmd": command, "params": parameters})).await;
    }

    /// Saves a screenshot to `target/console/`, and to `docs/images/` when `DISTLOCK_WRITE_IMAGES` is set.
    pub(crate) async fn picture(&self, name: &str) -> Vec<u8> {
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.call("GET", &path, &Value::Null).await;
        let bytes = from_base64(picture.as_str().expect("text"));
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("console");
        let documented = std::env::var_os("DISTLOCK_WRITE_IMAGES").map(|_| root.join("docs/images"));
        for directory in [Some(target), documented].into_iter().flatten() {
            std::fs::create_dir_all(&directory).expect("a directory");
            std::fs::write::<PathBuf, _>(directory.join(format!("{name}.png")), &bytes).expect("written");
        }
        bytes
    }

    /// Waits until `condition` is true in the page.
    pub(crate) async fn until(&self, what: &str, condition: &str) {
        let began = Instant::now();
        while self.js(&format!("return Boolean({condition})")).await != true {
            if began.elapsed() > LIMIT {
                let page = self.text("body").await;
                panic!("not in time: {what}; the page says:\n{page}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let sextets: Vec<u8> = text.bytes().filter_map(value).collect();
    let join = |four: &[u8]| {
        let bits = four.iter().fold(0_u32, |bits, sextet| bits << 6 | u32::from(*sextet)) << (6 * (4 - four.len()));
        bits.to_be_bytes()[1..four.len()].to_vec()
    };
    sextets.chunks(4).flat_map(join).collect()
}
