//! The programs and runs of `docs/FIRST_MODEL.md` and `docs/RUNS.md`.

use std::path::{Path, PathBuf};

use crate::common::cpu;
use trefoil_nn::config::Config;

/// The program of the first page. A test has no use for its `main`.
#[allow(dead_code, missing_docs)]
mod first_model {
    include!("../first_model/program.rs");

    use std::io::Read;

    /// Trains, saves, loads and answers a client over the network: the accuracy, and the answers to rows of the data.
    pub(super) fn served(
        device: &Device,
        csv: &str,
        file: &str,
        lines: &[&str],
    ) -> Outcome<(f64, Vec<String>)> {
        let accuracy = train(device, csv, file)?;
        let model = load(device, file)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut answers = vec![];
        for line in lines {
            let mut client = TcpStream::connect(listener.local_addr()?)?;
            writeln!(client, "{line}")?;
            let said = match answer(&model, device, listener.accept()?.0) {
                Ok(()) => {
                    let mut text = String::new();
                    client.read_to_string(&mut text)?;
                    text.trim().to_string()
                }
                Err(e) => e.to_string(),
            };
            answers.push(said);
        }
        Ok((accuracy, answers))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

/// The blocks of a language on a page.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let of = |t: &str| t.split("```").next().unwrap_or_default().to_string();
    page.split(&format!("```{language}\n")).skip(1).map(of).collect()
}

#[test]
fn the_first_model_is_trained_saved_loaded_and_served() {
    let program = blocks(&read(&root().join("docs/FIRST_MODEL.md")), "rust").join("\n");
    let written = read(&root().join("nn/tests/first_model/program.rs"));
    assert!(program == written, "nn/tests/first_model/program.rs is another text");
    let lines = program.lines().filter(|l| !l.trim().is_empty()).count();
    assert!(lines < 60, "{lines} lines");

    let csv = root().join("data/digits.csv");
    let rows = read(&csv);
    // The last rows are among those of the test: 64 pixels and the digit.
    let (pixels, digits): (Vec<&str>, Vec<&str>) =
        rows.lines().skip(1438).take(20).map(|l| l.rsplit_once(',').unwrap()).unzip();
    let file = std::env::temp_dir().join(format!("trefoil-first-model-{}.safetensors", std::process::id()));
    let (csv, file) = (csv.to_str().unwrap(), file.to_str().unwrap());
    let requests: Vec<&str> = pixels.into_iter().chain(["1,2,3", "a"]).collect();
    let (accuracy, answers) = first_model::served(&cpu(), csv, file, &requests).unwrap();
    assert!(accuracy >= 0.87, "{accuracy}");
    let right = answers.iter().zip(&digits).filter(|(a, d)| a == d).count();
    assert!(right >= 15, "{answers:?} for {digits:?}");
    assert!(answers[20].contains("64 elements") && answers[21].contains("invalid float"), "{answers:?}");
    let _ = std::fs::remove_file(file);
}

#[test]
fn every_run_of_the_page_trains() {
    let page = read(&root().join("docs/RUNS.md"));
    let folder = std::env::temp_dir().join(format!("trefoil-runs-page-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let houses = folder.join("houses.csv");
    std::fs::write(&houses, &blocks(&page, "csv")[0]).unwrap();
    let runs = blocks(&page, "json");
    assert!(runs.len() >= 5);
    for text in runs {
        let text = text.replace("houses.csv", houses.to_str().unwrap());
        let mut config = Config::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
        config.data.rebase(root()).unwrap();
        config.train.run = config.train.run.map(|run| folder.join(run));
        let device = cpu();
        let data = config.data.open().unwrap_or_else(|e| panic!("{text}: {e}"));
        let sources = config.sources(&data, &device).unwrap();
        let model = config.model(&device, &sources).unwrap_or_else(|e| panic!("{text}: {e}"));
        let mut trainer = config.trainer(&model, &data, &sources, &device).unwrap();
        let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true);
        let last = report.unwrap_or_else(|e| panic!("{text}: {e}")).history.pop().unwrap();
        assert!(last.train_loss.is_finite() && last.test_loss.is_some(), "{text}");
        assert_eq!(last.grad_norm.is_some_and(|n| n > 0.0), config.train.clip_norm.is_some(), "{text}");
    }
    // What the page says of the folder.
    let table = page.split("| file | what it is |").nth(1).unwrap();
    let names = table
        .lines()
        .take_while(|l| !l.trim().is_empty() || l.is_empty())
        .flat_map(|l| l.split('`').skip(1).step_by(2));
    let names: Vec<&str> =
        names.filter(|n| n.contains('.') && !n.contains(' ')).take_while(|n| *n != "trefoil").collect();
    for name in names.iter().take(7) {
        assert!(folder.join("runs/digits").join(name).exists(), "{name}");
    }
    let _ = std::fs::remove_dir_all(&folder);
}
