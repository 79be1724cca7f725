//! Tables with names, texts and gaps; runs that are used after training.

use std::path::PathBuf;

use crate::common::{cpu, devices};
use serde_json::{Value, json};
use trefoil_nn::autograd::no_grad;
use trefoil_nn::config::{Config, DataMapping, SavedRun, Weights, json_schema};
use trefoil_nn::data::table::{
    Categories, Column, ColumnRole, Missing, Table, TableOptions, TableSchema, Target,
};
use trefoil_nn::models::Generation;
use trefoil_nn::{DType, Layer, NnError, Tensor};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trefoil-table-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    fn write(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.at(name), text).unwrap();
        self.at(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PEOPLE: &str = "id,town,age,\"kind, of\",size\n1,Ulm,30,b,1.5\n2,\"Bonn, old\",,a,2.5\n3,Ulm,50,a,NA\n4,\"say \"\"hi\"\"\",40,b,3.5\n";

fn options(target: Target) -> TableOptions {
    TableOptions {
        target,
        categories: Categories::Auto,
        missing: Missing::Mean,
        drop: vec![Column::Named("id".into())],
        scale: 2.0,
        ..TableOptions::default()
    }
}

#[test]
fn tables_have_names_categories_classes_and_gaps() {
    let f = Folder::new("read");
    let path = f.write("people.csv", PEOPLE);
    let class = options(Target::Class(Column::Named("kind, of".into())));
    let t = Table::read(&path, &class, &mut Err).unwrap();
    // Towns in alphabetical order, then age and size: means of 40 and 2.5 for what is missing, numbers times 2.
    let want = [[0., 1., 0., 60., 3.], [1., 0., 0., 80., 5.], [0., 1., 0., 100., 5.], [0., 0., 1., 80., 7.]];
    assert_eq!(t.features, want.concat());
    assert_eq!((t.classes, t.rows, t.schema.features()), (vec![1, 0, 0, 1], 4, 5));
    assert_eq!(t.schema.classes.as_deref().unwrap(), ["a", "b"]);
    let towns = ["Bonn, old", "Ulm", "say \"hi\""].map(String::from).to_vec();
    assert_eq!(t.schema.columns[1].role, ColumnRole::Category { values: towns, optional: true });

    // The schema goes through JSON, and reads further files: other orders, without the target, unknown towns refused.
    let schema: TableSchema = serde_json::from_value(serde_json::to_value(&t.schema).unwrap()).unwrap();
    assert_eq!(schema, t.schema);
    let more = f.write("more.csv", "size,town,age\n1,Ulm,10\n,Ulm,?\n");
    let m = schema.read(&more, false, &mut Err).unwrap();
    assert_eq!(m.features, [0., 1., 0., 20., 2., 0., 1., 0., 80., 5.]);
    let text = |r: Result<Table, NnError>| r.unwrap_err().to_string();
    let e = text(schema.read(f.write("bad.csv", "size,town,age\n1,Rome,10\n"), false, &mut Err));
    assert!(
        e.contains("row 2, column 2") && e.contains("`Rome` is none of the column's known categories"),
        "{e}"
    );
    let e = text(schema.read(&more, true, &mut Err));
    assert!(e.contains("no column `kind, of`") && e.contains("size, town, age"), "{e}");

    // Values, classes in a given order, rows with gaps left out.
    let v = Table::read(&path, &options(Target::Value(Column::Named("age".into()))), &mut Err);
    assert!(text(v).contains("row 3, column 3: missing value"));
    let skip = TableOptions {
        missing: Missing::Skip,
        ..options(Target::Classes(Column::At(3), vec!["b".into(), "a".into()]))
    };
    let t = Table::read(&path, &skip, &mut Err).unwrap();
    assert_eq!((t.classes, t.rows), (vec![0, 0], 2));
}

#[test]
fn tables_refuse_what_they_cannot_read() {
    let f = Folder::new("refuse");
    let path = f.write("people.csv", PEOPLE);
    let with = |change: &dyn Fn(&mut TableOptions)| {
        let mut o = options(Target::Class(Column::Named("kind, of".into())));
        change(&mut o);
        Table::read(&path, &o, &mut Err).unwrap_err().to_string()
    };
    let e = with(&|o| o.categories = Categories::Refuse);
    assert!(e.contains("row 2, column 2: `Ulm` is not a number"), "{e}");
    let e = with(&|o| o.missing = Missing::Refuse);
    assert!(e.contains("row 3, column 3: missing value"), "{e}");
    let e = with(&|o| o.target = Target::Class(Column::Named("species".into())));
    assert!(e.contains("no column `species`; the first line names id, town"), "{e}");
    let e = with(&|o| o.target = Target::Classes(Column::At(3), vec!["a".into()]));
    assert!(e.contains("`b` is none of the known classes"), "{e}");
    let e = with(&|o| o.drop = vec![Column::At(9)]);
    assert!(e.contains("no column 9 (from 0) in 5 columns"), "{e}");
    let open = f.write("quote.csv", "a,b\n1,\"2\n");
    let e = Table::read(&open, &TableOptions::default(), &mut Err).unwrap_err().to_string();
    assert!(e.contains("a quote that does not end"), "{e}");
}

/// A run on a table whose classes are texts: trained, and used again from its folder alone.
#[test]
fn runs_are_used_after_training() {
    let f = Folder::new("saved");
    let mut rows = "shade,size,kind\n".to_string();
    for i in 0..60 {
        let (shade, size) = (["light", "dark"][i % 2], i % 5);
        rows += &format!("{shade},{size},{}\n", if i % 2 == 0 { "day" } else { "night" });
    }
    let csv = f.write("rows.csv", &rows);
    let run = f.at("run");
    let json = json!({
        "data": { "csv": csv, "label": "kind", "categorical": "auto", "split": "random", "test_rows": 20 },
        "model": { "layers": [{ "type": "dense", "out_features": 2 }] },
        "optimizer": { "type": "adam", "lr": 0.2 },
        "train": { "epochs": 15, "batch_size": 10, "seed": 3, "ema": 0.5, "run": run }
    });
    let device = cpu();
    let mut config = Config::from_value(json).unwrap();
    config.train.seed = 4;
    let data = config.data.open().unwrap();
    let sources = config.sources(&data, &device).unwrap();
    let model = config.model(&device, &sources).unwrap();
    let mut trainer = config.trainer(&model, &data, &sources, &device).unwrap();
    let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
    assert_eq!(report.history.last().unwrap().test_accuracy, Some(1.0));
    drop(trainer);

    for d in devices() {
        let saved = SavedRun::open(&run).unwrap();
        // As run, not as written.
        assert_eq!(saved.config.train.seed, 4);
        assert_eq!(saved.config.train, config.train);
        assert_eq!(saved.info.device, "cpu:0");
        assert_eq!(saved.mapping.classes.as_deref().unwrap(), ["day", "night"]);
        let new = f.write("new.csv", "size,shade\n1,dark\n3,light\n");
        let data = saved.config.data.inference(&new, &saved.mapping).unwrap();
        let sources = saved.config.sources(&data, &d).unwrap();
        let model = saved.config.model(&d, &sources).unwrap();
        saved.restore(&model, Weights::Best).unwrap();
        let x = sources.test.as_deref().unwrap().epoch(None, 8).unwrap().next().unwrap().unwrap().x;
        let y = no_grad(|| model.forward(&x)).unwrap().argmax(-1).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(y, [1, 0]);
        // The moving average is what was tested, and what is handed out.
        let state = saved.state(Weights::Last).unwrap();
        assert_eq!(state.keys().collect::<Vec<_>>(), ["0.bias", "0.weight"]);
        let last = trefoil_nn::checkpoint::Checkpoint::load(run.join("checkpoint.safetensors")).unwrap();
        assert_eq!(state["0.weight"], last.tensors["optimizer.ema.0.weight"]);
        assert_ne!(state["0.weight"], last.tensors["0.weight"]);
    }
    // What was trained resumes from the file in its own folder.
    let again = Config::load(run.join("config.json")).unwrap();
    assert_eq!(again.to_json(), config.to_json());
    let text = SavedRun::open(f.at("none")).unwrap_err().to_string();
    assert!(text.contains("trefoil train") && text.contains("no such folder"), "{text}");
}

#[test]
fn mappings_go_through_json() {
    let m = DataMapping {
        classes: Some(vec!["a".into()]),
        vocabulary: Some("ab\n".into()),
        ..DataMapping::default()
    };
    let back: DataMapping = serde_json::from_str(&serde_json::to_string(&m).unwrap()).unwrap();
    assert_eq!((back.class_name(0), back.class_name(1)), ("a".into(), "1".into()));
    assert_eq!(back, m);
}

/// Ids to logits of the next id: one more each time.
#[derive(Debug, Layer)]
struct Next {
    size: usize,
}

impl Next {
    fn forward(&self, ids: &Tensor) -> trefoil_nn::Result<Tensor> {
        let next = ids.add_scalar(1.0)?.to_dtype(DType::F32)?.unsqueeze(-1)?;
        let all = Tensor::arange(ids.device(), DType::F32, 0.0, 1.0, self.size)?;
        (next - all)?.square()?.neg()
    }
}

#[test]
fn any_network_of_logits_continues_a_text() {
    for d in devices() {
        let prompt = Tensor::from_slice(&d, &[2i64, 3], &[1, 2]).unwrap();
        let made = Generation::greedy(4).continued(&Next { size: 16 }, &prompt, 3).unwrap();
        assert_eq!(made.to_vec::<i64>().unwrap(), [2, 3, 4, 5, 6, 7]);
        let e = Generation::greedy(1).continued(&Next { size: 16 }, &prompt, 0).unwrap_err().to_string();
        assert!(e.contains("context"), "{e}");
    }
}

/// Whether a value fits a schema, as far as the schemas here say anything.
fn fits(schema: &Value, v: &Value) -> bool {
    let Some(s) = schema.as_object() else { return true };
    let kind = |t: &str| match t {
        "object" => v.is_object(),
        "array" => v.is_array(),
        "string" => v.is_string(),
        "boolean" => v.is_boolean(),
        "null" => v.is_null(),
        "integer" => v.is_u64() || v.is_i64(),
        _ => v.is_number(),
    };
    let types = s.get("type").is_none_or(|t| match t.as_array() {
        Some(list) => list.iter().any(|t| kind(t.as_str().unwrap())),
        None => kind(t.as_str().unwrap()),
    });
    let list = |key: &str| s.get(key).and_then(Value::as_array);
    let enums = list("enum").is_none_or(|all| all.contains(v)) && s.get("const").is_none_or(|c| c == v);
    let any = list("anyOf").is_none_or(|all| all.iter().any(|s| fits(s, v)));
    let one = list("oneOf").is_none_or(|all| all.iter().filter(|s| fits(s, v)).count() == 1);
    let items = s.get("items").is_none_or(|s| v.as_array().is_none_or(|all| all.iter().all(|v| fits(s, v))));
    let keys = v.as_object().is_none_or(|keys| {
        let Some(known) = s.get("properties").and_then(Value::as_object) else { return true };
        let required =
            list("required").is_none_or(|r| r.iter().all(|k| keys.contains_key(k.as_str().unwrap())));
        let closed = s.get("additionalProperties") == Some(&json!(false));
        required && keys.iter().all(|(k, v)| known.get(k).map_or(!closed, |s| fits(s, v)))
    });
    types && enums && any && one && items && keys
}

#[test]
fn the_schema_takes_what_the_reader_takes() {
    let schema = json_schema();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("examples");
    for name in ["digits", "karate_gcn", "karate_gat", "karate_sage", "shapes"] {
        let text = std::fs::read_to_string(root.join(format!("{name}.json"))).unwrap();
        let run: Value = serde_json::from_str(&text).unwrap();
        assert!(fits(&schema, &run), "{name}");
        // With all defaults, as the run folder keeps it.
        assert!(fits(&schema, &Config::parse(&text).unwrap().to_json()), "{name}");
        for (place, value) in [
            ("/optimizer/type", json!("adan w")),
            ("/train/epochs", json!("ten")),
            ("/model/layers/0/type", json!("danse")),
            ("/model/layers/0/out_feature", json!(3)),
            ("/data/labels_", json!(1)),
        ] {
            let mut wrong = run.clone();
            let (parent, key) = place.rsplit_once('/').unwrap();
            wrong.pointer_mut(parent).unwrap()[key] = value;
            assert!(!fits(&schema, &wrong) && Config::from_value(wrong).is_err(), "{name} {place}");
        }
    }
}
