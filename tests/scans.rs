//! Scans of state-space models where states have fewer columns than threads take: what lies beside them must not reach results, on every backend.

mod common;

use trefoil::BackendExt;
use trefoil::ops::state_space::{GlaScan, SelectiveScan};

/// Two steps of one head whose second value is infinite, with states of one column.
#[test]
fn infinite_inputs_of_narrow_states_stay_infinite() {
    for gpu in common::backends() {
        let of = |v: &[f32]| gpu.upload(v).unwrap();
        let (one, v) = (of(&[1.0, 1.0]), of(&[2.0, f32::INFINITY]));
        let mut y = gpu.upload(&[0f32; 2]).unwrap();
        let s = [1, 2, 1, 1];
        let (q, k, g) = (one.shaped(&s).unwrap(), one.shaped(&s).unwrap(), one.shaped(&s[..3]).unwrap());
        let io = GlaScan::new(q, k, v.shaped(&s).unwrap(), g, y.shaped_mut(&s).unwrap());
        gpu.gla_scan(io).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [2.0, f32::INFINITY], "{}", gpu.id());

        let (x, zero) = (v.shaped(&[1, 2, 1]).unwrap(), of(&[0.0]));
        let (dt, a) = (one.shaped(&[1, 2, 1]).unwrap(), zero.shaped(&[1, 1]).unwrap());
        let y_of = y.shaped_mut(&[1, 2, 1]).unwrap();
        gpu.selective_scan(false, SelectiveScan::new(x, dt, a, dt, dt, y_of)).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [2.0, f32::INFINITY], "{}", gpu.id());
    }
}
