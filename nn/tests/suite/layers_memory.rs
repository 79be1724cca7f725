//! Reading from and writing to a memory: gradients, terms of the loss, refusals.

use trefoil_nn::layers::{MemoryRead, MemoryWrite};
use trefoil_nn::{DType, InitContext, Layer, LayerExt, Tensor, auxiliary};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

fn layers(cx: &InitContext) -> Vec<(Box<dyn Layer>, &'static [usize])> {
    let read = |entropy| MemoryRead::new(cx, 4, 3, 2).unwrap().entropy_weight(entropy).unwrap();
    let write = || MemoryWrite::new(cx, 4, 3).unwrap();
    vec![
        (Box::new(read(0.0)), &[5, 3]),
        (Box::new(read(0.1).scale(1.0).unwrap()), &[2, 5, 3]),
        (Box::new(write()), &[2, 5, 3]),
        (Box::new(write().cosine().unwrap().entropy_weight(0.1).unwrap()), &[2, 5, 3]),
        (Box::new(write().cosine().unwrap().no_erase()), &[2, 5, 3]),
    ]
}

#[test]
fn gradients_and_refusals() {
    for (l, memory) in layers(&f64s()) {
        let (x, memory) = (tensor(&cpu(), &[2, 4], 1), tensor(&cpu(), memory, 2));
        let joined = |t: &[Tensor]| {
            let all = l.forward_all(t)?;
            let flat = all.iter().map(|t| t.reshape(&[t.numel()])).collect::<trefoil_nn::Result<Vec<_>>>()?;
            Tensor::concat(0, &flat.iter().collect::<Vec<_>>())
        };
        gradcheck_layer(l.kind(), &*l, &[x.clone(), memory.clone()], joined);
        let two = |x: &Tensor, m: &Tensor| l.forward_all(&[x.clone(), m.clone()]);
        refused(l.forward(&x), &[l.kind(), "memory", "features alone"]);
        refused(l.forward_all(&[x.clone(), memory.clone(), x.clone()]), &[l.kind(), "inputs", "3 tensors"]);
        refused(two(&x.narrow(1, 0, 3).unwrap(), &memory), &[l.kind(), "`x`", "[B, 4]", "[2, 3]"]);
        refused(two(&x, &memory.narrow(-2, 0, 0).unwrap()), &[l.kind(), "memory", "at least one slot"]);
        refused(two(&x, &memory.narrow(-1, 0, 2).unwrap()), &[l.kind(), "memory", "[2, S, 3]"]);
        refused(two(&x.select(0, 0).unwrap(), &memory), &[l.kind(), "`x`", "[B, 4]"]);
        refused(two(&x, &tensor(&cpu(), &[3, 5, 3], 2)), &[l.kind(), "memory", "[3, 5, 3]"]);
    }
    let write = MemoryWrite::new(&f64s(), 4, 3).unwrap();
    refused(write.write(&tensor(&cpu(), &[2, 4], 1), &tensor(&cpu(), &[5, 3], 2)), &["memory", "[5, 3]"]);
    refused(write.entropy_weight(-1.0), &["MemoryWrite", "entropy_weight"]);
    refused(MemoryWrite::new(&f64s(), 4, 0), &["memory_dim", "0"]);
    let read = || MemoryRead::new(&f64s(), 4, 3, 2).unwrap();
    refused(read().scale(f64::NAN), &["MemoryRead", "scale"]);
    refused(MemoryRead::new(&f64s(), 4, 0, 2), &["memory_dim", "0"]);
    assert_eq!(state_names(&read()), ["query.weight", "value.weight", "output.weight", "output.bias"]);
    let names = ["key", "content", "erase", "erase", "beta", "output", "output"];
    let cosine = MemoryWrite::new(&f64s(), 4, 3).unwrap().cosine().unwrap();
    for (name, part) in state_names(&cosine).iter().zip(names) {
        assert!(name.starts_with(part), "{name}");
    }
}

#[test]
fn writing_to_an_empty_memory() {
    let cx = f64s();
    let l = MemoryWrite::new(&cx, 4, 3).unwrap().cosine().unwrap();
    let (x, memory) = (tensor(&cpu(), &[2, 4], 1), Tensor::zeros(&cpu(), DType::F64, &[2, 5, 3]).unwrap());
    let memory = memory.with_grad();
    let (_, written) = l.write(&x, &memory).unwrap();
    // All slots get the same part of the content, which is what the memory then holds.
    let content = x.matmul(&l.state_dict().unwrap()["content.weight"].t().unwrap()).unwrap();
    close(
        &written.sum_axes(&[1], false).unwrap().to_vec::<f64>().unwrap(),
        &content.to_vec::<f64>().unwrap(),
        1e-12,
        "sum",
    );
    written.square().unwrap().sum().unwrap().backward().unwrap();
    assert!(memory.grad().unwrap().to_vec::<f64>().unwrap().iter().all(|g| g.is_finite()));
}

#[test]
fn entropy_joins_the_loss() {
    let (x, memory) = (tensor(&cpu(), &[2, 4], 1), tensor(&cpu(), &[2, 5, 3], 2));
    let read = MemoryRead::new(&f64s(), 4, 3, 2).unwrap().entropy_weight(0.5).unwrap();
    let ((_, a), terms) = auxiliary::collect(|| read.read(&x, &memory)).unwrap();
    let a = a.to_vec::<f64>().unwrap();
    close(&a.chunks(5).map(|row| row.iter().sum()).collect::<Vec<f64>>(), &[1.0; 2], 1e-12, "attention");
    let entropy: f64 = a.iter().map(|a| -a * a.ln()).sum();
    close(&[terms[0].item().unwrap()], &[0.5 * entropy / 2.0], 1e-12, "entropy of the attention");
    let plain = MemoryWrite::new(&f64s(), 4, 3).unwrap();
    assert!(auxiliary::collect(|| plain.write(&x, &memory)).unwrap().1.is_empty());
}

#[test]
fn nothing_waits_for_the_device() {
    for d in devices() {
        for (l, shape) in layers(&InitContext::new(&d, 1)) {
            let x = Tensor::ones(&d, DType::F32, &[2, 4]).unwrap().with_grad();
            let memory = Tensor::ones(&d, DType::F32, shape).unwrap().with_grad();
            let run = || {
                let (y, terms) = auxiliary::collect(|| l.forward_all(&[x.clone(), memory.clone()])).unwrap();
                let sum = y[0].sum().unwrap().add(&y[1].square().unwrap().sum().unwrap()).unwrap();
                auxiliary::added_to(sum, &terms).unwrap().backward().unwrap();
            };
            run();
            resident(l.kind(), &d, run);
        }
    }
}
