//! State dictionaries, modes, and models that move between devices.

use std::sync::Arc;

use super::{each, host, random};
use crate::common::everywhere::values;
use crate::common::layers::{f64s, refused, state_names};
use crate::common::{close, cpu, f32s, id, tensor};
use trefoil_nn::layers::*;
use trefoil_nn::{
    Device, InitContext, Layer, LayerExt, MseLoss, NnError, Optimizer, Param, Result, StateDict, StateMap,
    Tensor, Visitor,
};

#[test]
fn sequential_state_and_modes() {
    let cx = f64s();
    let inner = Sequential::new().named("drop", Dropout::new(&cx, 0.5).unwrap());
    let model = Sequential::new()
        .named("first", Dense::new(&cx, 2, 3).unwrap())
        .push(BatchNormalization::new(&cx, 3).unwrap())
        .named("block", inner.push(Dense::new(&cx, 3, 1).unwrap()));
    let names = state_names(&model);
    assert_eq!(names[..2], ["first.weight", "first.bias"]);
    assert!(
        names.contains(&"1.running_mean".into()) && names.contains(&"block.1.weight".into()),
        "{names:?}"
    );
    assert_eq!(model.by_name("first").map(|l| l.kind()), Some("Dense"));
    assert_eq!(model.get(1).map(|l| l.kind()), Some("BatchNormalization"));
    assert!(model.get(3).is_none() && model.by_name("none").is_none());
    // Nested dropout and statistics follow the mode.
    let x = tensor(&cpu(), &[4, 2], 1);
    model.eval();
    let count = || model.state_dict().unwrap()["1.num_batches_tracked"].item::<i64>().unwrap();
    assert_eq!(values(&model.forward(&x).unwrap()), values(&model.forward(&x).unwrap()));
    assert_eq!(count(), 0);
    model.train();
    assert_ne!(values(&model.forward(&x).unwrap()), values(&model.forward(&x).unwrap()));
    assert_eq!(count(), 2);
    // Shared layers count once.
    let tied = Arc::new(Dense::new(&cx, 3, 3).unwrap());
    let model = Sequential::new().push(tied.clone()).push(tied.clone());
    assert_eq!(
        (model.named_parameters().len(), model.parameters().len(), model.num_parameters()),
        (4, 2, 12)
    );
    model.forward(&tensor(&cpu(), &[1, 3], 1)).unwrap().sum().unwrap().backward().unwrap();
    assert!(model.parameters().iter().all(|p| p.get().grad().is_some()));
    model.zero_grad().unwrap();
    assert!(model.parameters().iter().all(|p| p.get().grad().is_none()));
}

#[test]
fn state_dictionaries() {
    each(|d| {
        let make = |seed| Dense::new(&InitContext::new(d, seed), 2, 3).unwrap();
        let (a, b) = (make(1), make(2));
        b.load_state_dict(&a.state_dict().unwrap()).unwrap();
        assert_eq!(host(&b.weight().unwrap().get()), host(&a.weight().unwrap().get()));
        assert!(b.state_dict().unwrap().values().all(|t| id(t.device()) == id(d)));
        let c = make(3);
        let old = host(&c.weight().unwrap().get());
        let mut state = a.state_dict().unwrap();
        assert!(c.state_diff(&state).is_complete());
        state.insert("extra".into(), f32s(d, &[0.0], &[1]));
        state.insert("weight".into(), f32s(d, &[0.0; 6], &[2, 3]));
        assert!(matches!(c.load_state_dict(&state), Err(NnError::StateNames { .. })));
        let diff = c.state_diff(&state);
        assert_eq!(
            (diff.loaded.as_slice(), diff.unexpected.as_slice()),
            (&["bias".to_string()][..], &["extra".to_string()][..])
        );
        assert_eq!(
            (diff.mismatched[0].name.as_str(), diff.mismatched[0].found.as_slice()),
            ("weight", &[2usize, 3][..])
        );
        assert!(diff.missing.is_empty() && !diff.is_complete());
        state.remove("extra");
        assert!(matches!(c.load_state_dict(&state), Err(NnError::StateShape { .. })));
        assert_eq!(host(&c.weight().unwrap().get()), old, "nothing was replaced");
        let report = c.load_matching(&state).unwrap();
        assert_eq!(report, c.state_diff(&state));
        assert_eq!(host(&c.bias().unwrap().get()), host(&a.bias().unwrap().get()));
        assert_eq!(host(&c.weight().unwrap().get()), old);
        state.remove("bias");
        assert_eq!(c.state_diff(&state).missing, ["bias"]);
    });
}

#[test]
fn state_maps() {
    let t = |v: f32| f32s(&cpu(), &[v, 1., 2., 3., 4., 5.], &[2, 3]);
    let state: StateDict =
        [("m.fc.weight", t(7.0)), ("m.fc.bias", f32s(&cpu(), &[1.], &[1])), ("head", t(8.0))]
            .map(|(n, t)| (n.to_string(), t))
            .into();
    let keys = |m: StateMap| m.apply(&state).unwrap().into_keys().collect::<Vec<_>>();
    let new = StateMap::new;
    assert_eq!(keys(new()), ["head", "m.fc.bias", "m.fc.weight"]);
    assert_eq!(
        keys(new().rename("head", "tail").rename("absent", "x")),
        ["m.fc.bias", "m.fc.weight", "tail"]
    );
    assert_eq!(keys(new().rename_prefix("m.", "n.")), ["head", "n.fc.bias", "n.fc.weight"]);
    assert_eq!(keys(new().strip_prefix("m.fc.")), ["bias", "head", "weight"]);
    assert_eq!(keys(new().add_prefix("a.")), ["a.head", "a.m.fc.bias", "a.m.fc.weight"]);
    assert_eq!(keys(new().select("m.*")), ["m.fc.bias", "m.fc.weight"]);
    assert_eq!(keys(new().exclude("*.bias").exclude("head")), ["m.fc.weight"]);
    assert_eq!(
        keys(new().strip_prefix("m.").select("fc.*").add_prefix("z.")),
        ["z.fc.bias", "z.fc.weight"],
        "in order"
    );
    let turned = new().transpose("head").apply(&state).unwrap();
    assert_eq!((turned["head"].shape(), host(&turned["head"])), (&[3, 2][..], vec![8., 3., 1., 4., 2., 5.]));
    let turned = new().transpose_matching("m.*").apply(&state).unwrap();
    assert_eq!(turned["m.fc.weight"].shape(), [3, 2]);
    assert_eq!((turned["m.fc.bias"].shape(), turned["head"].shape()), (&[1][..], &[2, 3][..]));
    let doubled = new().transform("*.bias", |_, t| t.mul_scalar(2.0)).apply(&state).unwrap();
    assert_eq!(host(&doubled["m.fc.bias"]), [2.0]);
    refused(new().rename("head", "m.fc.bias").apply(&state), &["StateMap", "m.fc.bias"]);
    refused(new().transpose("m.fc.bias").apply(&state), &["StateMap", "matrix"]);
    assert!(format!("{:?}", new().select("a")).contains("select"));
}

#[test]
fn models_move_with_everything() {
    each(|d| {
        // Onto the device and back, in the middle of training: the same as staying.
        let run = |moving: bool| {
            let cx = InitContext::new(&cpu(), 3);
            let model = Sequential::new()
                .push(Dense::new(&cx, 2, 4).unwrap().no_bias()) // whose gradient would be noise
                .push(BatchNormalization::new(&cx, 4).unwrap())
                .push(Dense::new(&cx, 4, 1).unwrap());
            let mut opt = Optimizer::adam(&model, 0.1).unwrap().ema(0.9).unwrap();
            let home = |model: &Sequential| model.parameters()[0].get().device().clone();
            let data = |d: &Device| (random(d, &[6, 2], 1), random(d, &[6, 1], 2));
            for step in 0..4 {
                if moving && step % 2 == 1 {
                    let to = if step == 1 { d.clone() } else { cpu() };
                    let grads = model.parameters().iter().filter(|p| p.get().grad().is_some()).count();
                    opt.to_device(&to).unwrap();
                    model.to_device(&to).unwrap();
                    assert_eq!(model.parameters().iter().filter(|p| p.get().grad().is_some()).count(), grads);
                    assert!(model.state_dict().unwrap().values().all(|t| id(t.device()) == id(&to)));
                    assert!(opt.state_tensors().unwrap().iter().all(|(_, t)| id(t.device()) == id(&to)));
                }
                let (x, y) = data(&home(&model));
                opt.zero_grad().unwrap();
                MseLoss::default().forward(&model.forward(&x).unwrap(), &y).unwrap().backward().unwrap();
                opt.step().unwrap();
            }
            let mut all = model.state_dict().unwrap().values().flat_map(values).collect::<Vec<_>>();
            all.extend(opt.state_tensors().unwrap().iter().flat_map(|(_, t)| values(t)));
            all
        };
        close(&run(true), &run(false), 1e-4, &format!("to {} and back", id(d)));
        // Gradients without an optimizer move as well, and what was shared stays shared.
        let shared = Param::new(random(&cpu(), &[3], 1));
        let other = Param::new(shared.get().detach());
        #[derive(Debug)]
        struct Pair(Param, Param);
        impl Layer for Pair {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.mul(&self.0.get())?.add(&self.1.get())
            }
            fn visit(&self, v: &mut Visitor<'_>) {
                v.param("a", &self.0);
                v.param("b", &self.1);
            }
        }
        let pair = Pair(shared, other);
        pair.forward(&random(&cpu(), &[3], 2)).unwrap().sum().unwrap().backward().unwrap();
        let before = pair.0.get().grad().unwrap();
        pair.to_device(d).unwrap();
        assert_eq!(host(&pair.0.get().grad().unwrap()), host(&before));
        assert!(pair.0.get().shares_storage(&pair.1.get()));
    });
}
