//! Pooling of meshes: gradients, what is left of a mesh, refusals.

use trefoil_nn::layers::{MeshEdgeConv, MeshPool, PooledMesh};
use trefoil_nn::network::NetworkConfig;
use trefoil_nn::{DType, Layer, Mesh, Result, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, noise, tensor};

const OCTAHEDRON: [[usize; 3]; 8] =
    [[0, 1, 2], [0, 2, 3], [0, 3, 4], [0, 4, 1], [5, 2, 1], [5, 3, 2], [5, 4, 3], [5, 1, 4]];

/// Neighbours and vertices of the edges of an octahedron.
fn octahedron() -> [Tensor; 2] {
    let mesh = Mesh::from_faces(&cpu(), 6, &OCTAHEDRON).unwrap();
    [mesh.neighbors().clone(), mesh.edges().unwrap().clone()]
}

fn pool(l: &MeshPool, x: &Tensor) -> Result<PooledMesh> {
    let [gemm, edges] = octahedron();
    l.pool(x, &gemm, Some(&edges))
}

#[test]
fn an_octahedron_becomes_a_bipyramid_and_a_tetrahedron() {
    let x = tensor(&cpu(), &[12, 2], 1);
    for (target, left, vertices) in [(12, 12, 6), (11, 9, 5), (9, 9, 5), (8, 6, 4)] {
        let l = MeshPool::new(target).unwrap();
        let y = pool(&l, &x).unwrap();
        assert_eq!((y.features.shape(), y.gemm.shape()), (&[left, 2][..], &[left, 4][..]), "{target}");
        // A closed mesh: each edge has four neighbours, which have it.
        assert!(
            MeshEdgeConv::new(&f64s(), 2, 1)
                .unwrap()
                .forward_all(&[y.features.clone(), y.gemm.clone()])
                .is_ok()
        );
        assert!(y.gemm.to_vec::<i64>().unwrap().iter().all(|n| (0..left as i64).contains(n)));
        let mut ends = y.edges.unwrap().to_vec::<i64>().unwrap();
        ends.sort_unstable();
        ends.dedup();
        assert_eq!(ends.len(), vertices, "{target}");
        // Means keep what is the same everywhere, and the way back does too.
        let (graph, weight) = y.averages.unwrap();
        let ones = Tensor::ones(&cpu(), DType::F64, &[12, 1]).unwrap();
        let identity = trefoil::ops::activation::Activation::Identity;
        let means = graph.spmm(&ones, Some(&weight), None, identity).unwrap().to_vec::<f64>().unwrap();
        close(&means, &vec![1.0; left], 1e-15, "means of ones");
        let kept = y.kept.to_vec::<i64>().unwrap();
        assert!(kept.is_sorted() && kept.len() == left);
    }
    // The edge of the smallest features goes: the eleven others hold it in part.
    let small = x.index_fill(0, &Tensor::from_slice(&cpu(), &[4i64], &[1]).unwrap(), 1e-3).unwrap();
    let kept = pool(&MeshPool::new(11).unwrap(), &small).unwrap().kept.to_vec::<i64>().unwrap();
    assert!(!kept.contains(&4), "{kept:?}");
}

#[test]
fn gradients_and_batches() {
    let (d, cx, [gemm, edges]) = (cpu(), f64s(), octahedron());
    let twice = |t: &Tensor| Tensor::stack(0, &[t, t]).unwrap();
    let layers = [MeshPool::new(8).unwrap(), MeshPool::topk(&cx, 5, 2).unwrap()];
    for l in &layers {
        let x = tensor(&d, &[2, 12, 2], 1);
        let one = |x: &Tensor| l.forward_all(&[x.clone(), gemm.clone(), edges.clone()]);
        gradcheck_layer("pool", l, &[x.select(0, 0).unwrap()], |t| Ok(one(&t[0])?.remove(0)));
        let both = l.forward_all(&[x.clone(), twice(&gemm), twice(&edges)]).unwrap();
        for b in 0..2 {
            let each = one(&x.select(0, b).unwrap()).unwrap();
            let rows = each[0].shape()[0];
            for (all, each) in both.iter().zip(&each) {
                let part =
                    all.select(0, b).unwrap().narrow(0, 0, rows).unwrap().to_dtype(DType::F64).unwrap();
                let each = each.to_dtype(DType::F64).unwrap();
                assert_eq!(part.to_vec::<f64>().unwrap(), each.to_vec::<f64>().unwrap());
            }
        }
    }
    // Six edges are left of eight places.
    let filled = layers[0].forward_all(&[
        tensor(&d, &[1, 12, 2], 1),
        gemm.unsqueeze(0).unwrap(),
        edges.unsqueeze(0).unwrap(),
    ]);
    let filled = filled.unwrap();
    assert_eq!(filled[0].shape(), [1, 8, 2]);
    assert!(filled[0].narrow(1, 6, 2).unwrap().to_vec::<f64>().unwrap().iter().all(|v| *v == 0.0));
    assert!(filled[1].narrow(1, 6, 2).unwrap().to_vec::<i64>().unwrap().iter().all(|v| *v == -1));
    // The scores stay on the device.
    let x = tensor(&d, &[12, 2], 1).with_grad();
    let step = || layers[1].pool(&x, &gemm, None).unwrap().features.sum().unwrap().backward().unwrap();
    step();
    resident("topk", &d, step);
    assert_eq!(state_names(&layers[1]), ["weight"]);
    assert!(state_names(&layers[0]).is_empty());
    assert_eq!(
        layers[1]
            .pool(&x.narrow(0, 0, 3).unwrap(), &gemm.narrow(0, 0, 3).unwrap(), None)
            .unwrap()
            .kept
            .numel(),
        3
    );
}

#[test]
fn networks_know_the_size_beforehand() {
    let text = r#"{ "inputs": { "x": [12, 3], "gemm": { "shape": [12, 4], "dtype": "i64" }, "edges": { "shape": [12, 2], "dtype": "i64" } },
        "layers": [ { "type": "mesh_pool", "name": "pool", "target_edges": 8, "inputs": ["x", "gemm", "edges"] },
            { "type": "mesh_edge_conv", "name": "conv", "in_channels": 3, "out_channels": 5, "inputs": ["pool", "pool.1"] } ],
        "outputs": ["conv", "pool.2"] }"#;
    let config = NetworkConfig::parse(text).unwrap();
    let items = [(&[12usize, 2][..], DType::I64), (&[12, 4], DType::I64), (&[12, 3], DType::F32)];
    assert_eq!(config.output_shapes("", &items).unwrap(), [vec![2, 8, 5], vec![2, 8, 2]]);
}

#[test]
fn refusals() {
    let (d, cx, x, [gemm, edges]) = (cpu(), f64s(), tensor(&cpu(), &[12, 2], 1), octahedron());
    refused(MeshPool::new(0), &["MeshPool", "target_edges", "at least 1"]);
    refused(MeshPool::topk(&cx, 3, 0), &["MeshPool", "in_channels"]);
    // All edges of two triangles are at the border.
    let open = Mesh::from_faces(&d, 4, &[[0, 1, 2], [2, 1, 3]]).unwrap();
    let pooled = MeshPool::new(4).unwrap().pool(&tensor(&d, &[5, 2], 1), open.neighbors(), open.edges());
    refused(pooled, &["MeshPool", "target_edges", "at least 5, as no further edge can collapse", "4"]);
    let l = MeshPool::new(9).unwrap();
    refused(l.forward(&x), &["MeshPool", "gemm"]);
    refused(l.pool(&x, &gemm, None), &["MeshPool", "edges", "none"]);
    refused(l.pool(&x, &gemm.narrow(0, 0, 11).unwrap(), Some(&edges)), &["gemm", "[12, 4]", "[11, 4]"]);
    refused(l.pool(&x, &gemm, Some(&edges.to_dtype(DType::F64).unwrap())), &["edges", "integers", "f64"]);
    refused(l.pool(&x.unsqueeze(0).unwrap(), &gemm, Some(&edges)), &["`x`", "[E, C]", "[1, 12, 2]"]);
    let changed = |at: usize, value: i64| {
        let mut list = gemm.to_vec::<i64>().unwrap();
        list[at] = value;
        l.pool(&x, &Tensor::from_slice(&d, &list, &[12, 4]).unwrap(), Some(&edges))
    };
    refused(changed(5, 12), &["gemm", "-1 or another edge of 12", "12 (edge 1)"]);
    refused(changed(5, -2), &["gemm", "-2 (edge 1)"]);
    refused(changed(5, 1), &["gemm", "another edge", "1 (edge 1)"]);
    refused(l.pool(&x, &gemm, Some(&edges.neg().unwrap())), &["edges", "at least 0", "-1"]);
    // Numbers of vertices need not be those of a list.
    let far = edges.mul(&Tensor::full(&d, DType::I64, &[], 2f64.powi(60)).unwrap()).unwrap();
    assert_eq!(l.pool(&x, &gemm, Some(&far)).unwrap().features.shape(), [9, 2]);
    refused(changed(0, 11), &["gemm", "edge 0 among the neighbours of edge 11"]);
    // Two triangles that have all three edges in common.
    let both = Mesh::from_faces(&d, 3, &[[0, 1, 2], [2, 1, 0]]).unwrap();
    let x = tensor(&d, &[3, 2], 1);
    let pooled = MeshPool::new(2).unwrap().pool(&x, both.neighbors(), both.edges());
    refused(pooled, &["gemm", "which share their triangles"]);
    let topk = MeshPool::topk(&cx, 3, 4).unwrap();
    refused(topk.pool(&x, both.neighbors(), None), &["MeshPool", "`x`", "a last axis of 4"]);
}

#[test]
fn neighbours_without_a_surface_do_no_harm() {
    let l = MeshPool::new(2).unwrap();
    let mut refused = 0;
    for seed in 0..300 {
        // Places among the neighbours of eight edges, joined two by two.
        let keys = noise(seed, 32);
        let mut places: Vec<usize> = (0..32).collect();
        places.sort_by(|&a, &b| keys[a].total_cmp(&keys[b]));
        let mut gemm = [-1i64; 32];
        for pair in places.chunks(2).filter(|p| p[0] / 4 != p[1] / 4) {
            (gemm[pair[0]], gemm[pair[1]]) = ((pair[1] / 4) as i64, (pair[0] / 4) as i64);
        }
        let ends: Vec<i64> = keys[..16].iter().map(|v| ((v + 1.0) * 2.5) as i64).collect();
        let [gemm, ends] =
            [(&gemm[..], 4), (&ends, 2)].map(|(v, n)| Tensor::from_slice(&cpu(), v, &[8, n]).unwrap());
        match l.pool(&tensor(&cpu(), &[8, 1], seed), &gemm, Some(&ends)) {
            Ok(y) => assert!(y.features.shape()[0] <= 2),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "{refused}");
}
