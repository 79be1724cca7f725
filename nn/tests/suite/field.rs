//! Neural fields against grid_sample, closed forms and their definitions, on every device.

use trefoil::ops::field::{HashGrid, Projection};
use trefoil::ops::random::Rng;
use trefoil::ops::resample::{GridSample, SampleMode, SamplePadding};
use trefoil_nn::{DType, Device, Result, Tensor};

use crate::common::everywhere::{everywhere, everywhere_with, values};
use crate::common::{close, cpu, devices, id, noise, tensor};

/// Positions and everything else inside.
fn inside(x: f64) -> f64 {
    0.5 + 0.45 * x
}

/// Uploads the sizes of the levels, which stay on the device.
fn warm(p: HashGrid, x: &'static [usize], table: &'static [usize]) -> impl Fn(&Device) {
    move |d| {
        let zeros = |s| Tensor::zeros(d, DType::F32, s).unwrap();
        drop(zeros(x).hash_grid_encode(&zeros(table), p).unwrap());
    }
}

#[test]
fn hash_grids() {
    let cases: [(HashGrid, &'static [usize], &'static [usize]); 3] = [
        (HashGrid::new(2, 1.5), &[4, 3], &[3, 40, 2]),
        (HashGrid::new(3, 2.0), &[2, 3, 2], &[2, 11, 3]),
        (HashGrid::new(1, 1.0), &[2, 1, 2, 3], &[1, 8, 5]),
    ];
    for (p, x, table) in cases {
        let what = format!("{p:?}");
        everywhere_with(&what, &[x, table], warm(p, x, table), inside, |t, ()| {
            t[0].hash_grid_encode(&t[1], p)
        });
    }
    let (x, table) = (tensor(&cpu(), &[4, 3], 1), tensor(&cpu(), &[2, 8, 2], 2));
    assert_eq!(x.hash_grid_encode(&table, HashGrid::new(2, 1.5)).unwrap().shape(), [4, 4]);
    let e = x.hash_grid_encode(&table, HashGrid::new(0, 1.5)).unwrap_err().to_string();
    assert!(e.contains("`base`"), "{e}");
    let e = x.hash_grid_encode(&x, HashGrid::new(2, 1.5)).unwrap_err().to_string();
    assert!(e.contains("`table`"), "{e}");
}

#[test]
fn a_dense_level_is_a_volume() {
    for d in devices() {
        let table: Vec<f32> = noise(3, 64 * 2).into_iter().map(|x| x as f32).collect();
        // Beyond the border too.
        let at: Vec<f32> = noise(4, 60).into_iter().map(|x| 0.5 + 0.6 * x as f32).collect();
        let x = Tensor::from_slice(&d, &at, &[20, 3]).unwrap();
        let level = Tensor::from_slice(&d, &table, &[1, 64, 2]).unwrap();
        let grid = Tensor::from_slice(&d, &table, &[4, 4, 4, 2]).unwrap();
        let y = x.hash_grid_encode(&level, HashGrid::new(3, 2.0)).unwrap();
        let want = grid.trilinear_interpolate(&x).unwrap();
        assert_eq!(values(&y), values(&want), "on {}", id(&d));
    }
}

#[test]
fn volumes_are_those_of_grid_sample() {
    let cases: [[&'static [usize]; 2]; 2] = [[&[2, 3, 4, 2], &[5, 3]], [&[1, 2, 2, 3], &[2, 2, 3]]];
    for shapes @ [grid, points] in cases {
        // Uploads the sizes, which stay on the device.
        let warm = |d: &Device| {
            let zeros = |s| Tensor::zeros(d, DType::F32, s).unwrap();
            drop(zeros(grid).trilinear_interpolate(&zeros(points)).unwrap());
        };
        everywhere_with("trilinear_interpolate", &shapes, warm, inside, |t, ()| {
            t[0].trilinear_interpolate(&t[1])
        });
    }
    let (grid, points) = (tensor(&cpu(), &[3, 4, 5, 2], 1), tensor(&cpu(), &[30, 3], 2));
    let y = grid.trilinear_interpolate(&points).unwrap();
    let volume = grid.permute(&[3, 0, 1, 2]).unwrap().unsqueeze(0).unwrap();
    let at = points.mul_scalar(2.0).unwrap().add_scalar(-1.0).unwrap().reshape(&[1, 1, 1, 30, 3]).unwrap();
    let p = GridSample::new(SampleMode::Linear).padding(SamplePadding::Border).align_corners(true);
    let want = volume.grid_sample(&at, p).unwrap().reshape(&[2, 30]).unwrap().t().unwrap();
    close(&values(&y), &values(&want.contiguous().unwrap()), 1e-12, "grid_sample");
    let e = grid.trilinear_interpolate(&grid).unwrap_err().to_string();
    assert!(e.contains("`points`"), "{e}");
}

#[test]
fn harmonics() {
    for count in [4, 9, 16, 25] {
        let shapes: [&[usize]; 2] = [&[3, 3], &[3, 2, count]];
        everywhere(
            &format!("{count} harmonics"),
            &shapes,
            &[],
            |x| x,
            |t, _| t[0].spherical_harmonics(&t[1]),
        );
    }
    // One function is the same in all directions.
    everywhere(
        "of degree 0",
        &[&[3, 2, 1]],
        &[],
        |x| x,
        |t, _| t[0].select(1, 0)?.expand(&[3, 3])?.detach().spherical_harmonics(&t[0]),
    );
    let r = Tensor::from_slice(&cpu(), &[0.0f64, 0.6, 0.8], &[1, 3]).unwrap();
    let k = Tensor::from_slice(&cpu(), &[1.0f64, 2.0, 3.0, 4.0], &[1, 1, 4]).unwrap();
    let (l0, l1) = (0.28209479177387814, 0.4886025119029199);
    let want = l0 - 2.0 * l1 * 0.6 + 3.0 * l1 * 0.8;
    close(&values(&r.spherical_harmonics(&k).unwrap()), &[want], 1e-14, "degree 1");
    let e = r.spherical_harmonics(&k.reshape(&[1, 2, 2]).unwrap()).unwrap_err().to_string();
    assert!(e.contains("coefficients"), "{e}");
}

#[test]
fn covariances_of_gaussians() {
    everywhere("gaussian_covariance", &[&[5, 4], &[5, 3]], &[], inside, |t, _| {
        t[0].gaussian_covariance(&t[1])
    });
    everywhere("of more axes", &[&[2, 1, 4], &[2, 1, 3]], &[], inside, |t, _| {
        t[0].gaussian_covariance(&t[1])
    });
    // A quarter of a turn about z, and a quaternion of another length: x becomes y.
    let q = Tensor::from_slice(&cpu(), &[3.0f64, 0.0, 0.0, 3.0], &[1, 4]).unwrap();
    let s = Tensor::from_slice(&cpu(), &[2.0f64, 3.0, 5.0], &[1, 3]).unwrap();
    let y = q.gaussian_covariance(&s).unwrap();
    close(&values(&y), &[9.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 25.0], 1e-14, "a quarter of a turn");
    let e = q.gaussian_covariance(&q).unwrap_err().to_string();
    assert!(e.contains("`scale`"), "{e}");
}

/// A camera at (0, 0, -3) that looks along z, of 9 x 7 pixels.
fn camera(d: &Device) -> [Tensor; 2] {
    let view = [1.0f32, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 0.0, 0.0, 0.0, 1.0];
    let intrinsics = [9.0f32, 0.0, 4.5, 0.0, 9.0, 3.5, 0.0, 0.0, 1.0];
    [Tensor::from_slice(d, &view, &[4, 4]).unwrap(), Tensor::from_slice(d, &intrinsics, &[3, 3]).unwrap()]
}

/// The image of places, rotations, scales, colours and opacities, and what is left of the light, as one vector.
fn splatted(t: &[Tensor], camera: &[Tensor; 2]) -> Result<Tensor> {
    let [view, intrinsics] = camera;
    let means = t[0].sub_scalar(0.5)?;
    let covariance = t[1].gaussian_covariance(&t[2].mul_scalar(0.4)?)?;
    let like = |c: &Tensor| c.to_dtype(means.dtype());
    let p = Projection::new(9, 7);
    let seen = means.project_gaussians(&covariance, &like(view)?, &like(intrinsics)?, p)?;
    let r = seen.rasterize(&t[3], &t[4])?;
    Tensor::concat(0, &[&r.image.flatten(0, -1)?, &r.transmittance.flatten(0, -1)?, &seen.depths])
}

#[test]
fn images_of_gaussians() {
    let shapes: [&[usize]; 5] = [&[6, 3], &[6, 4], &[6, 3], &[6, 2], &[6]];
    everywhere_with("splatting", &shapes, camera, inside, splatted);
    // The image alone, and the light alone, which colours do not change: the other gradient is absent.
    everywhere_with("the image", &shapes, camera, inside, |t, c| splatted(t, c)?.narrow(0, 0, 126));
    let shapes: [&[usize]; 4] = [&[6, 3], &[6, 4], &[6, 3], &[6]];
    everywhere_with("the light", &shapes, camera, inside, |t, c| {
        let white = t[2].detach();
        let all = [&t[0], &t[1], &t[2], &white, &t[3]].map(Tensor::clone);
        splatted(&all, c)?.narrow(0, 189, 63)
    });
    for d in devices() {
        // A red Gaussian before a green one of the same place: it hides nearly all of it; one behind the camera is not seen.
        let centers =
            Tensor::from_slice(&d, &[0.0f32, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, -9.0], &[3, 3]).unwrap();
        let covariance = Tensor::eye(&d, DType::F32, 3).unwrap().mul_scalar(0.5).unwrap();
        let covariance = covariance.expand(&[3, 3, 3]).unwrap();
        let [view, intrinsics] = camera(&d);
        let seen = centers.project_gaussians(&covariance, &view, &intrinsics, Projection::new(9, 7)).unwrap();
        let place = format!("on {}", id(&d));
        let radii: Vec<i32> = seen.radii.to_vec().unwrap();
        assert!(radii[0] > 0 && radii[1] > radii[0] && radii[2] == 0, "{radii:?} {place}");
        let colors = Tensor::from_slice(&d, &[0.0f32, 1.0, 1.0, 0.0, 9.0, 9.0], &[3, 2]).unwrap();
        let opacities = Tensor::from_slice(&d, &[0.9f32, 0.9, 0.9], &[3]).unwrap();
        let r = seen.rasterize(&colors, &opacities).unwrap();
        let middle = 3 * 9 + 4;
        let (image, left) = (values(&r.image), values(&r.transmittance));
        close(&image[2 * middle..][..2], &[0.9, 0.09], 1e-6, &place);
        close(&left[middle..][..1], &[0.01], 1e-6, &place);
    }
    let (x, c) = (tensor(&cpu(), &[4, 3], 1), tensor(&cpu(), &[4, 3, 3], 2));
    let [view, intrinsics] = camera(&cpu()).map(|t| t.to_dtype(DType::F64).unwrap());
    let refused = |p: Projection, name: &str| {
        let e = x.project_gaussians(&c, &view, &intrinsics, p).unwrap_err().to_string();
        assert!(e.contains(name), "{e}");
    };
    refused(Projection::new(0, 7), "`width`");
    refused(Projection::new(9, 7).blur(-1.0), "`blur`");
    let seen = x.project_gaussians(&c, &view, &intrinsics, Projection::new(9, 7)).unwrap();
    let e = seen.rasterize(&x.narrow(0, 0, 3).unwrap(), &x.select(1, 0).unwrap()).unwrap_err().to_string();
    assert!(e.contains("`colors`"), "{e}");
}

#[test]
fn gradients_of_images_have_the_same_bits() {
    // More Gaussians and pixels than one block takes.
    let [n, side] = [600, 40];
    for d in devices() {
        let draw = |shape: &[usize], stream| {
            Tensor::rand(&d, DType::F32, shape, 0.0, 1.0, Rng::new(9).at(stream, 0)).unwrap()
        };
        let means = draw(&[n, 3], 0).sub_scalar(0.5).unwrap().mul_scalar(2.0).unwrap().with_grad();
        let covariance = Tensor::eye(&d, DType::F32, 3).unwrap().mul_scalar(0.02).unwrap();
        let covariance = covariance.expand(&[n, 3, 3]).unwrap();
        let (colors, opacities) = (draw(&[n, 3], 1).with_grad(), draw(&[n], 2).with_grad());
        let s = side as f32;
        let intrinsics = [s, 0.0, s / 2.0, 0.0, s, s / 2.0, 0.0, 0.0, 1.0];
        let intrinsics = Tensor::from_slice(&d, &intrinsics, &[3, 3]).unwrap();
        let pass = || {
            let p = Projection::new(side, side);
            let seen = means.project_gaussians(&covariance, &camera(&d)[0], &intrinsics, p).unwrap();
            let r = seen.rasterize(&colors, &opacities).unwrap();
            r.image.square().unwrap().sum().unwrap().backward().unwrap();
            [&means, &colors, &opacities].map(|t| {
                let g = values(&t.grad().unwrap());
                t.zero_grad().unwrap();
                g
            })
        };
        let first = pass();
        assert!(first.iter().all(|g| g.iter().any(|v| *v != 0.0)), "on {}", id(&d));
        assert_eq!(first, pass(), "on {}", id(&d));
    }
}

#[test]
fn samples_along_rays() {
    for d in devices() {
        let near = Tensor::from_slice(&d, &[1.0f32, 0.0, 2.0], &[3]).unwrap();
        let far = Tensor::from_slice(&d, &[3.0f32, 8.0, 2.0], &[3]).unwrap();
        let t = near.ray_sampling(&far, 4, None).unwrap();
        let want = [1.25, 1.75, 2.25, 2.75, 1.0, 3.0, 5.0, 7.0, 2.0, 2.0, 2.0, 2.0];
        close(&values(&t), &want, 1e-6, &format!("midpoints on {}", id(&d)));
        let t = near.ray_sampling(&far, 64, Some(Rng::new(5))).unwrap();
        let drawn = values(&t);
        for (s, t) in drawn[..64].iter().enumerate() {
            let part = (t - 1.0) * 32.0 - s as f64;
            assert!((-1e-5..1.0 + 1e-5).contains(&part), "sample {s} at {t} on {}", id(&d));
        }
        let again = near.ray_sampling(&far, 64, Some(Rng::new(5))).unwrap();
        assert_eq!(values(&again), drawn);
        let other = near.ray_sampling(&far, 64, Some(Rng::new(6))).unwrap();
        assert_ne!(values(&other), drawn);
        // Equal weights: the middle of each interval. One weight: its interval alone.
        let edges = Tensor::from_slice(&d, &[0.0f32, 1.0, 3.0, 7.0, 0.0, 1.0, 3.0, 7.0], &[2, 4]).unwrap();
        let weights = Tensor::from_slice(&d, &[0.5f32, 0.5, 0.5, 0.0, 2.0, 0.0], &[2, 3]).unwrap();
        let t = edges.importance_sampling(&weights, 3, 0.0, None).unwrap();
        let third = 2.0 / 3.0;
        let want = [0.5, 2.0, 5.0, 1.0 + 0.5 * third, 2.0, 1.0 + 2.5 * third];
        close(&values(&t), &want, 1e-5, &format!("importance on {}", id(&d)));
        let t = values(&edges.importance_sampling(&weights, 9, 0.0, Some(Rng::new(5))).unwrap());
        assert!(t[9..].iter().all(|t| (1.0..=3.0 + 1e-5).contains(t)), "{t:?} on {}", id(&d));
        assert!(t[..9].is_sorted() && t[9..].is_sorted());
        assert!(edges.importance_sampling(&weights, 3, -1.0, None).is_err());
        assert!(weights.importance_sampling(&weights, 3, 0.0, None).is_err());
        assert!(near.ray_sampling(&weights, 3, None).is_err());
    }
}

/// All that a rendering gives, as one vector.
fn rendered(t: &[Tensor]) -> Result<Tensor> {
    let r = t[0].volume_render(&t[1], &t[2], t.get(3))?;
    let all = [Some(&r.color), Some(&r.opacity), Some(&r.weights), r.depth.as_ref()];
    let flat = all.into_iter().flatten().map(|t| t.reshape(&[t.numel()])).collect::<Result<Vec<_>>>()?;
    Tensor::concat(0, &flat.iter().collect::<Vec<_>>())
}

#[test]
fn rendering() {
    let shapes: [&[usize]; 4] = [&[2, 5], &[2, 5, 3], &[2, 5], &[2, 5]];
    everywhere("volume_render", &shapes, &[], inside, |t, _| rendered(t));
    everywhere("without distances", &shapes[..3], &[], inside, |t, _| rendered(t));
    everywhere("of more axes", &[&[2, 1, 3], &[2, 1, 3, 5], &[2, 1, 3]], &[], inside, |t, _| rendered(t));
    // The colour alone, and the depth alone: the other gradients are absent.
    everywhere("colour", &shapes[..3], &[], inside, |t, _| Ok(t[0].volume_render(&t[1], &t[2], None)?.color));
    everywhere("depth", &[&[2, 5][..]; 3], &[], inside, |t, _| {
        let depth = t[0].volume_render(&t[0].detach().unsqueeze(2)?, &t[1], Some(&t[2]))?.depth;
        depth.map_or_else(|| t[2].sum(), Ok)
    });
    for d in devices() {
        // A wall at the second sample hides the third; the first lets half of the light through.
        let density = Tensor::from_slice(&d, &[std::f32::consts::LN_2, 1e9, 5.0], &[1, 3]).unwrap();
        let color = Tensor::from_slice(&d, &[1.0f32, 0.0, 0.0, 1.0, 7.0, 7.0], &[1, 3, 2]).unwrap();
        let (delta, t) = (density.ones_like().unwrap(), Tensor::arange(&d, DType::F32, 1.0, 1.0, 3).unwrap());
        let r = density.volume_render(&color, &delta, Some(&t.reshape(&[1, 3]).unwrap())).unwrap();
        let place = format!("on {}", id(&d));
        close(&values(&r.color), &[0.5, 0.5], 1e-6, &place);
        close(&values(&r.opacity), &[1.0], 1e-6, &place);
        close(&values(&r.weights), &[0.5, 0.5, 0.0], 1e-6, &place);
        close(&values(&r.depth.unwrap()), &[1.5], 1e-6, &place);
    }
    let x = tensor(&cpu(), &[2, 5], 1);
    let e = x.volume_render(&tensor(&cpu(), &[2, 4, 3], 2), &x, None).unwrap_err().to_string();
    assert!(e.contains("`color`"), "{e}");
    let e = x.volume_render(&tensor(&cpu(), &[2, 5, 3], 2), &x, Some(&x.t().unwrap())).unwrap_err();
    assert!(e.to_string().contains("`t`"), "{e}");
}
