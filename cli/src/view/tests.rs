//! The view without a terminal: events of a training, pictures of its state, keys.

use std::collections::BTreeMap;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyEvent;
use trefoil::Registry;
use trefoil_nn::config::Config;

use super::*;

fn plan() -> Plan {
    Plan { title: "cpu:0: 10 parameters".into(), epochs: 4, steps: 10, items: 100 }
}

fn stats(epoch: u64, loss: f64) -> EpochStats {
    EpochStats {
        epoch,
        step: 10 * epoch,
        lr: 0.01,
        train_loss: loss,
        train_accuracy: Some(0.5),
        test_loss: Some(loss + 0.25),
        test_accuracy: Some(0.25 * epoch as f64),
        metrics: BTreeMap::from([("f1".to_string(), 0.125)]),
        grad_norm: None,
        seconds: 1.0,
    }
}

/// One and a half of four epochs, ten steps in a second.
fn halfway() -> State {
    let mut state = State::new(plan());
    state.memory = Memory { in_use: 3 << 20, peak: 5 << 20, total: 16 << 30 };
    for number in 1..=15 {
        let epoch = (number - 1) / 10 + 1;
        if number % 10 == 1 {
            state.begin(epoch);
        }
        let loss = Some(2.0 / number as f64);
        state.step(number as f64 / 10.0, Step { epoch, number, lr: 0.02, loss });
        if number % 10 == 0 {
            state.end(number as f64 / 10.0, stats(epoch, 0.75));
        }
    }
    state
}

fn picture(state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw::draw(frame, state)).unwrap();
    terminal.backend().to_string()
}

#[test]
fn the_state_follows_from_events() {
    let state = halfway();
    assert_eq!((state.epoch, state.step, state.history.len(), state.batches.len()), (2, 5, 1, 15));
    assert_eq!((state.of_epoch(), state.of_all()), (0.5, 0.375));
    // Ten steps of ten items in a second; 25 steps are left.
    assert!((state.throughput().unwrap() - 100.0).abs() < 1e-9, "{:?}", state.throughput());
    assert!((state.remaining().unwrap() - 2.5).abs() < 1e-9, "{:?}", state.remaining());
    assert_eq!(state.batches[14], (1.5, 2.0 / 15.0));

    // What went before five seconds does not count: one step in a second now.
    let mut slow = halfway();
    for number in 16..=26 {
        slow.step(number as f64 - 14.0, Step { epoch: 3, number, lr: 0.02, loss: None });
    }
    assert!((slow.throughput().unwrap() - 10.0).abs() < 1e-9, "{:?}", slow.throughput());
    assert_eq!(slow.batches.len(), 15);

    // A resumed training counts its own steps alone.
    let mut resumed = State::new(plan());
    assert_eq!((resumed.throughput(), resumed.remaining()), (None, None));
    resumed.begin(3);
    resumed.step(2.0, Step { epoch: 3, number: 28, lr: 0.02, loss: None });
    assert_eq!((resumed.step, resumed.remaining()), (8, Some(24.0)));

    // Many batches: a curve of bounded length that keeps its ends.
    let mut long = State::new(Plan { steps: 5000, ..plan() });
    for number in 1..=5000 {
        long.step(number as f64, Step { epoch: 1, number, lr: 0.02, loss: Some(number as f64) });
    }
    assert!(long.batches.len() <= 1024 && long.batches.len() > 256, "{}", long.batches.len());
    assert_eq!((long.batches[0].1, long.batches.last().unwrap().1), (1.0, 5000.0));
}

#[test]
fn the_picture_shows_the_state() {
    let shown = picture(&halfway(), 120, 32);
    for text in [
        "cpu:0: 10 parameters",
        "epoch 2/4, step 5/10",
        "50 %",
        "38 %",
        "all 0:02, 0:03 left",
        "100 items/s",
        "learning rate 2.00e-2",
        "loss 0.1333",
        "memory 3.0 MiB of 16.00 GiB, at most 5.0 MiB",
        "accuracy",
        "f1",
        "train",
        "test",
        "batches",
        "q: close",
        "Ctrl-C",
    ] {
        assert!(shown.contains(text), "no `{text}` in\n{shown}");
    }
    // The loss runs from 2/15 to 2.
    assert!(shown.contains("2.000") && shown.contains("0.133"), "{shown}");
    assert!(shown.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)), "no curve in\n{shown}");
    assert_eq!(shown, picture(&halfway(), 120, 32));
    // In a small window the first charts.
    let small = picture(&halfway(), 60, 18);
    assert!(small.contains("loss") && !small.contains("accuracy") && small.contains("q: close"), "{small}");
}

#[test]
fn every_size_and_every_number_can_be_drawn() {
    let mut odd = State::new(Plan { title: "ü".repeat(300), epochs: 0, steps: 0, items: 0 });
    odd.step(f64::INFINITY, Step { epoch: 7, number: 9, lr: f64::NAN, loss: Some(f64::NAN) });
    odd.step(1.0, Step { epoch: 0, number: 0, lr: -1.0, loss: Some(f64::INFINITY) });
    odd.end(
        1.0,
        EpochStats { train_loss: f64::NAN, test_loss: Some(1e300), epoch: u64::MAX, ..stats(1, 0.0) },
    );
    let mut flat = halfway();
    flat.batches = vec![(0.5, 0.0); 3];
    for state in [State::new(plan()), halfway(), odd, flat] {
        for (width, height) in [(1, 1), (2, 3), (10, 5), (38, 13), (39, 14), (80, 24), (300, 100), (20, 90)] {
            picture(&state, width, height);
        }
    }
}

#[test]
fn keys_close_the_view_or_end_the_training() {
    let press = |code, modifiers| key(&Event::Key(KeyEvent::new(code, modifiers)));
    assert!(matches!(press(KeyCode::Char('q'), KeyModifiers::NONE), Some(Ended::Closed)));
    assert!(matches!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Ended::Interrupted)));
    assert!(press(KeyCode::Char('c'), KeyModifiers::NONE).is_none());
    assert!(key(&Event::Resize(3, 4)).is_none());
}

/// A short training tells the view what it does, and its lines wait until the view is closed.
#[test]
fn a_training_is_seen() {
    let json = r#"{
        "data": { "csv": "data/digits.csv", "scale": 0.0625, "train_rows": 200, "test_rows": 50 },
        "model": { "layers": [{ "type": "dense", "out_features": 10 }] },
        "train": { "epochs": 2, "batch_size": 20, "accumulate": 2 }
    }"#;
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut config = Config::parse(json).unwrap();
    config.data.rebase(root).unwrap();
    let device = Registry::default().open(&"cpu".parse().unwrap()).unwrap();
    let data = config.data.open().unwrap();
    let sources = config.sources(&data, &device).unwrap();
    let model = config.model(&device, &sources).unwrap();
    let view = View { shared: Shared::new(Plan { epochs: 2, steps: 5, items: 200, ..plan() }), thread: None };
    view.shared.lock().open = true;
    let trainer = config.trainer(&model, &data, &sources, &device).unwrap();
    let mut trainer = trainer.callback(view.events(&device));
    let (mut out, mut seen) = (vec![], vec![]);
    let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| {
        view.flush(&mut out).unwrap();
        seen.push(view.shared.lock().state.of_all());
        true
    });
    assert_eq!((seen, out.len()), (vec![0.5, 1.0], 0));
    let mut screen = view.shared.lock();
    assert_eq!(screen.state.history, report.unwrap().history);
    let state = &screen.state;
    assert_eq!((state.epoch, state.step, state.remaining()), (2, 5, Some(0.0)));
    assert!(state.throughput().unwrap() > 0.0 && state.memory.in_use > 0);
    // At least the first batch's loss, that of ten classes before anything is learned.
    assert!((state.batches[0].1 - 10f64.ln()).abs() < 1.5, "{:?}", state.batches);
    assert!(picture(state, 120, 32).contains("epoch 2/2, step 5/5"));
    screen.open = false;
    screen.flush(&mut out).unwrap();
    screen.flush(&mut out).unwrap();
    let lines = String::from_utf8(out).unwrap();
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(lines.starts_with("epoch   1/2") && lines.contains("\nepoch   2/2"), "{lines}");
}
