//! What users do with a run: write one, train it, and use its folder.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let p = std::env::temp_dir().join(format!("trefoil-after-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Runs the binary in the folder: its output, and whether it succeeded.
    fn run(&self, args: &[&str]) -> (String, bool) {
        let o = Command::new(env!("CARGO_BIN_EXE_trefoil"))
            .args(args)
            .current_dir(&self.0)
            .env("TREFOIL_BACKEND", "cpu")
            .output()
            .unwrap();
        let text = String::from_utf8([o.stdout, o.stderr].concat()).unwrap();
        assert!(!text.contains("panicked"), "{args:?}: {text}");
        (text, o.status.success())
    }

    fn ok(&self, args: &[&str]) -> String {
        let (text, ok) = self.run(args);
        assert!(ok, "{args:?}: {text}");
        text
    }

    fn fails(&self, args: &[&str], words: &[&str]) {
        let (text, ok) = self.run(args);
        assert!(!ok && words.iter().all(|w| text.contains(w)), "{args:?}: {text}");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A table of texts, numbers, gaps and classes with names.
fn table() -> String {
    let mut rows = "name,shade,size,kind\n".to_string();
    for i in 0..120 {
        let shade = ["light", "dark", "grey"][i % 3];
        let size = if i % 7 == 0 { String::new() } else { (i % 5).to_string() };
        rows += &format!(
            "item {i},{shade},{size},{}\n",
            if shade == "light" { "\"day, bright\"" } else { "night" }
        );
    }
    rows
}

#[test]
fn a_table_from_init_to_report() {
    let f = Folder::new("table");
    f.write("rows.csv", &table());
    let text = f.ok(&["init", "csv", "rows.csv", "--label", "kind"]);
    assert!(text.contains("trefoil train run.json"), "{text}");
    f.fails(&["init", "csv", "rows.csv"], &["run.json", "must not be there yet"]);
    let text = f.ok(&["data", "run.json", "--picture", "batch.svg"]);
    assert!(text.contains("96 training and 24 test items") && text.contains("day, bright"), "{text}");
    assert!(f.read("batch.svg").contains("<rect"));
    let set = ["--set", "train.epochs=20", "--set", "data.drop=[\"name\"]", "--set", "optimizer.lr=0.02"];
    let text = f.ok(&[&["train", "run.json", "--set", "model.layers[0].out_features=8"][..], &set].concat());
    assert!(text.contains("results are in runs/rows"), "{text}");
    // The run as it was made, which is a run itself.
    let kept: serde_json::Value = serde_json::from_str(&f.read("runs/rows/config.json")).unwrap();
    assert_eq!(
        (&kept["train"]["epochs"], &kept["model"]["layers"][0]["out_features"]),
        (&20.into(), &8.into())
    );
    let info = f.read("runs/rows/run.json");
    assert!(info.contains("cpu:0") && info.contains(env!("CARGO_PKG_VERSION")), "{info}");

    let text = f.ok(&["eval", "runs/rows", "--confusion", "confusion.svg"]);
    assert!(text.contains("24 test items") && text.contains("accuracy 1.0000"), "{text}");
    assert!(f.read("confusion.svg").contains("day, bright"));
    let json: serde_json::Value =
        serde_json::from_str(&f.ok(&["eval", "runs/rows", "--json", "--last"])).unwrap();
    assert_eq!((&json["items"], &json["weights"]), (&24.into(), &"checkpoint.safetensors".into()));
    f.write("small.csv", "name,shade,size,kind\na,dark,1,night\nb,light,,\"day, bright\"\n");
    assert!(f.ok(&["eval", "runs/rows", "--data", "small.csv"]).contains("2 test items"));

    // New rows: other columns, another order, no targets.
    f.write("new.csv", "size,shade\n1,light\n,dark\n");
    let text = f.ok(&["predict", "runs/rows", "new.csv"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "class,score");
    assert!(lines[1].starts_with("\"day, bright\",0.") && lines[2].starts_with("night,0."), "{text}");
    f.ok(&["predict", "runs/rows", "new.csv", "--scores", "--out", "p.csv"]);
    assert!(f.read("p.csv").starts_with("class,score,\"day, bright\",night\n"));
    f.write("strange.csv", "size,shade\n1,purple\n");
    f.fails(
        &["predict", "runs/rows", "strange.csv"],
        &["strange.csv: row 2, column 2: `purple`", "known categories"],
    );
    f.fails(&["predict", "runs/none", "new.csv"], &["runs/none", "trefoil train"]);
    f.fails(&["generate", "runs/rows", "--prompt", "x"], &["expected a run on `text`, got one on `csv`"]);

    assert!(f.ok(&["export", "runs/rows"]).contains("6 tensors of best.safetensors"));
    let exported = std::fs::read(f.0.join("runs/rows/model.safetensors")).unwrap();
    let header = String::from_utf8_lossy(&exported[8..400]).into_owned();
    assert!(header.contains("0.weight") && !header.contains("optimizer"), "{header}");
    f.ok(&["report", "runs/rows"]);
    let html = f.read("runs/rows/report.html");
    assert!(html.contains("<svg") && html.contains("Dense") && html.contains("accuracy 1.0000"), "{html}");
    assert!(
        !html.contains("http://")
            || html.matches("http://").count() == html.matches("http://www.w3.org/2000/svg").count()
    );
    f.ok(&["plot", "runs/rows", "--log"]);
    assert!(f.read("runs/rows/plot.svg").contains("learning rate"));
    f.ok(&["summary", "run.json", "--svg", "net.svg"]);
    assert!(f.read("net.svg").contains("Dense"));
}

#[test]
fn a_text_from_init_to_generation() {
    let f = Folder::new("text");
    f.write("book.txt", &"abcabcabc, and so on. ".repeat(60));
    f.ok(&["init", "text", "book.txt", "--out", "book.json"]);
    let small =
        ["--set", "model.layers.1.hidden_size=24", "--set", "train.epochs=8", "--set", "data.length=12"];
    f.ok(&[&["train", "book.json", "--quiet"][..], &small].concat());
    // Without the text: the run keeps its vocabulary.
    std::fs::remove_file(f.0.join("book.txt")).unwrap();
    let a = f.ok(&["generate", "runs/book", "--prompt", "abc", "--tokens", "30", "--seed", "1"]);
    assert!(a.starts_with("abc") && a.trim_end().chars().count() >= 30, "{a}");
    assert_eq!(a, f.ok(&["generate", "runs/book", "--prompt", "abc", "--tokens", "30", "--seed", "1"]));
    let greedy = f.ok(&["generate", "runs/book", "--prompt", "abcabc", "--tokens", "20", "--greedy"]);
    assert!(greedy.starts_with("abcabcabc"), "{greedy}");
    f.fails(&["generate", "runs/book", "--prompt", "xyz"], &["characters of the vocabulary", "'x'"]);
}

#[test]
fn meshes_from_init_to_report() {
    let f = Folder::new("meshes");
    let shapes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/shapes").display().to_string();
    f.ok(&["init", "meshes", &shapes]);
    let text = f.ok(&["data", "run.json"]);
    assert!(text.contains("36 training and 12 test items") && text.contains("torus"), "{text}");
    f.ok(&["train", "run.json", "--quiet", "--set", "train.epochs=30"]);
    let text = f.ok(&["eval", "runs/shapes", "--confusion", "confusion.svg"]);
    assert!(text.contains("12 test items"), "{text}");
    assert!(f.read("confusion.svg").contains("sphere"));
    f.ok(&["report", "runs/shapes"]);
    assert!(f.read("runs/shapes/report.html").contains("MeshEdgeConv"));
    assert!(f.ok(&["summary", "run.json"]).contains("MeshEdgeConv"));
    f.fails(&["predict", "runs/shapes", "cube.off"], &["whose items are rows", "`meshes`"]);
    f.write("labels.csv", "cube/00.off,even\ncube/01.off,odd\nsphere/00.off,even\ntorus/01.off,odd\n");
    f.ok(&["init", "meshes", &shapes, "--labels", "labels.csv", "--out", "some.json"]);
    assert!(f.ok(&["data", "some.json"]).contains("3 training and 1 test item"));
    f.fails(&["init", "meshes", ".", "--out", "none.json"], &["files that end in .obj or .off"]);
}

#[test]
fn wrong_settings_are_named() {
    let f = Folder::new("set");
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits.json").display().to_string();
    for (set, words) in [
        ("optimizer.lr", &["--set optimizer.lr", "KEY=VALUE"][..]),
        ("optimizer..lr=1", &["names between dots"]),
        ("model.layers.9.bias=false", &["a position below 3, got `9`"]),
        ("train.epochs.x=1", &["expected an object or a list above `x`, got 100"]),
        ("train.epoch=1", &["unknown field `epoch`", "did you mean `epochs`"]),
        ("optimizer.lr=-1", &["`optimizer.lr`", "above 0"]),
    ] {
        f.fails(&["train", &digits, "--set", set], words);
    }
    let schema: serde_json::Value = serde_json::from_str(&f.ok(&["schema"])).unwrap();
    assert_eq!(schema["required"], serde_json::json!(["data", "model"]));
}
