use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use trefoil::{Registry, Selector};
use trefoil_nn::data::{CsvOptions, ResidentSource, read_csv};
use trefoil_nn::state_file::{LoadOptions, SaveOptions, save};
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, DType, Device, InitContext, Layer, LayerExt, Optimizer, StateFile};
use trefoil_nn::{Result, Tensor, Trainer, autograd, layers::Dense};

#[derive(Debug, Layer)]
struct Digits {
    hidden: Dense,
    head: Dense,
}

impl Digits {
    fn new(cx: &InitContext) -> Result<Self> {
        Ok(Digits { hidden: Dense::new(cx, 64, 128)?, head: Dense::new(cx, 128, 10)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.head.forward(&self.hidden.forward(x)?.relu()?)
    }
}

type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn train(device: &Device, csv: &str, file: &str) -> Outcome<f64> {
    let rows = read_csv(csv, &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let train = ResidentSource::new(&rows.slice(0, 1437)?, device, DType::F32)?;
    let test = ResidentSource::new(&rows.slice(1437, 360)?, device, DType::F32)?;
    let model = Digits::new(&InitContext::new(device, 1))?;
    let optimizer = Optimizer::adamw(&model, 6e-3, 0.01)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let options = TrainOptions { epochs: 15, batch_size: 64, ..TrainOptions::default() };
    let mut trainer = Trainer::new(&model, optimizer, objective, device, options)?;
    let report = trainer.fit(&train, Some(&test), &mut |_| true)?;
    save(&model.state_dict()?, file, &SaveOptions::new())?;
    Ok(report.history.last().and_then(|epoch| epoch.test_accuracy).unwrap_or(0.0))
}

fn load(device: &Device, file: &str) -> Result<Digits> {
    let model = Digits::new(&InitContext::new(device, 0))?;
    StateFile::open(file)?.load(&model, &LoadOptions::new())?;
    Ok(model)
}

fn answer(model: &Digits, device: &Device, mut client: TcpStream) -> Outcome<()> {
    let mut line = String::new();
    BufReader::new(&client).read_line(&mut line)?;
    let pixels: Vec<f32> = line.trim().split(',').map(|n| n.parse()).collect::<std::result::Result<_, _>>()?;
    let x = Tensor::from_slice(device, &pixels, &[1, 64])?;
    let logits = autograd::no_grad(|| model.forward(&(x / 16.0)?))?;
    Ok(writeln!(client, "{}", logits.argmax(-1)?.item::<i64>()?)?)
}

fn main() -> Outcome<()> {
    let device = Registry::default().open(&Selector::from_env()?)?;
    println!("test accuracy {:.3}", train(&device, "digits.csv", "digits.safetensors")?);
    let model = load(&device, "digits.safetensors")?;
    for client in TcpListener::bind("127.0.0.1:7878")?.incoming() {
        answer(&model, &device, client?).unwrap_or_else(|e| eprintln!("bad request: {e}"));
    }
    Ok(())
}
