"""Cases of the suites that `write.py` writes."""
from table import Table

T = Table("trefoil own 1")
R = dict

for k in ("adan_update", "sophia_update"):
    T(k, R(shape=(7,)), R(shape=(3, 41), steps=6), R(shape=(1030,), steps=3, wd=0.1, lr=0.05), R(shape=(5,), found_inf=1.0, steps=2),
      R(shape=(70,), inv_scale=0.125, steps=3), R(shape=(9,), maximize=True, steps=2), R(shape=(0,)), R(shape=(6,), step=0, err="invalid"))
T("adan_update", R(shape=(33,), resume=True, step=9, steps=4), R(shape=(64,), gdtype="bf16", steps=2), R(shape=(17,), b1=0.9, b2=0.8, b3=0.95, steps=5))
T("sophia_update", R(shape=(50,), gamma=10.0, steps=4))
T("sophia_curvature", R(shape=(19,)), R(shape=(3, 40), batch=32.0, steps=3))

LISTS = [R(shapes=[(5,)], steps=1), R(shapes=[(3,), (4, 9)], steps=5), R(shapes=[(2, 4100), (7,), (31,)], steps=2),
         R(shapes=[(6,), (5,)], steps=3, inv_scale=0.5), R(shapes=[(6,)], steps=3, found_inf=1.0), R(shapes=[(6,), (8,)], steps=3, maximize=True)]
T("hypergradient_sgd_update", *LISTS, lr=0.05, rate=1e-5)
T("hypergradient_sgd_update", R(shapes=[(4,)], steps=8, lr=0.01, rate=0.01, tag="fast"))
T("schedule_free_sgd_update", *LISTS, lr=0.05, wd=0.1)
T("schedule_free_sgd_update", R(shapes=[(40,)], steps=12, lr=0.1, b=0.5, tag="half"), R(shapes=[(4,)], steps=3, lr=0.0, tag="rate_0"))
T("schedule_free_adamw_update", *LISTS, lr=0.05, wd=0.1)
T("schedule_free_adamw_update", R(shapes=[(40,)], steps=12, lr=0.01, b=0.95, b2=0.99, tag="other_decays"))
T("dadapt_sgd_update", *LISTS, d0=0.5, wd=0.01)
T("dadapt_sgd_update", R(shapes=[(40,)], steps=8, d0=0.1, mu=0.9, growth=1.02, tag="slow_growth"))
T("dadapt_adam_update", *LISTS, d0=0.03125, wd=0.1)
T("dadapt_adam_update", R(shapes=[(40,)], steps=8, d0=0.01, growth=1.02, tag="slow_growth"))
T("prodigy_update", *LISTS, d0=0.25, wd=0.1)
T("prodigy_update", R(shapes=[(40,)], steps=8, d0=0.1, coef=2.0, growth=1.02, tag="slow_growth"), R(shapes=[(4,)], d0=0.0, err="invalid", tag="d0_0"))

T("sparse_adam_step", R(shape=(7, 5)), R(shape=(40, 33), n=50, steps=4), R(shape=(9, 4), n=1, steps=3, itype="i32"), R(shape=(3, 300), n=20, steps=2),
  R(shape=(8, 4), n=0), R(shape=(8, 4), steps=3, inv_scale=0.25), R(shape=(8, 4), steps=2, found_inf=1.0), R(shape=(8, 4), steps=2, maximize=True))
for rule in ("sgd", "momentum", "nag", "adam", "adamw", "amsgrad", "radam", "adamax", "rmsprop", "rmsprop_momentum", "rmsprop_centered", "adagrad",
             "adadelta"):
    T("sparse_step", R(shape=(11, 6), n=9, steps=4, rule=rule, wd=0.1), R(shape=(5,), n=3, steps=2, rule=rule, itype="i32"))

for k in ("adam_bf16_step", "adam8bit_step", "adam8bit_codes"):
    T(k, R(shape=(300,)), R(shape=(3, 700), wd=0.1, resume=True, step=5), R(shape=(2048,), resume=True, step=7, decoupled=True, wd=0.05), R(shape=(1,)),
      R(shape=(257,), maximize=True))

for d in ("f32", "bf16"):
    T("circle_loss circle_loss_backward", R(n=[3, 4], items=[3]), R(n=[7, 33], items=[7], s=16.0), R(n=[5, 300], items=[5], s=32.0, m=0.4, pairs=True),
      R(n=[6, 9], items=[6], s=8.0, pairs=True, detach=False), R(n=[4, 5], items=[4], s=8.0, reduction="none"),
      R(n=[4, 5], items=[4], s=8.0, reduction="sum"), R(n=[3, 1], items=[3]), dtype=d)
    T("kto_loss kto_loss_backward", R(items=[5]), R(items=[300], kl=0.4, beta=0.5), R(items=[33], kl=-0.3, undesirable=1.5, reduction="sum"),
      R(items=[2, 9], desirable=0.5, reduction="none"), dtype=d)

P2 = [R(shape=(4, 7)), R(shape=(9, 40)), R(shape=(5, 6), reduction="none"), R(shape=(3, 5), reduction="sum")]
T("multilabel_margin_loss multilabel_margin_loss_backward", *P2)
SPATIAL = [R(shape=(3, 3, 3)), R(shape=(2, 5, 7), weight=True, ignore=True), R(shape=(3, 4, 2, 5), reduction="none"), R(shape=(4, 2, 33), reduction="sum"),
           R(shape=(6,)), R(shape=(5,), weight=True, reduction="none"), R(shape=(2, 3, 0), reduction="sum"), R(shape=(2, 40, 3, 3), weight=True)]
T("nll_loss nll_loss_backward", *SPATIAL)
T("nll_loss", R(shape=(3, 4, 5), bad_id=4, err="index_out_of_range"))
T("pad pad_backward", R(shape=(4,), pad=[-1, 1]), R(shape=(3, 5), pad=[2, -2]), R(shape=(2, 7, 6), pad=[-2, 3, 4, -1]), R(shape=(2, 5), pad=[-2, -1]),
  R(shape=(3, 4), pad=[1, -3, -1, 1]), mode="circular")
T("pad_backward", R(shape=(3, 6), pad=[-2, 4], acc=["dx"], tag="circular_accumulate"), mode="circular")
T("pad", R(shape=(6,), pad=[-2, 5], err="invalid", tag="circular_beyond_the_crop"), mode="circular")
T("meshgrid", R(sizes=[5], indexing="xy"))
POLES = [s - d for d in (3.171e-4, -3.171e-4, 1e-3, -0.02) for s in (-1.0, -2.0, -3.0, -7.0)]
T("digamma digamma_backward", R(shape=(40,), special=POLES))
T("layernorm_backward", R(rows=300, k=1))
T("groupnorm_backward", R(shape=(30, 4), G=4))
T("instancenorm_backward", R(shape=(30, 4, 1)))
T("batchnorm_backward", R(shape=(1, 300)))
T("rmsprop_step", R(tag="mu2"), R(tag="mu78"), R(tag="mu89"), shape=(300,), mu=0.9, steps=5)

STEPS = [R(shape=(7,)), R(shape=(3, 41), steps=6), R(shape=(1030,), steps=3), R(shape=(9,), steps=2, maximize=True), R(shape=(0,))]
DECAY = [R(shape=(40,), steps=4, wd=0.1), R(shape=(5,), found_inf=1.0, steps=2), R(shape=(70,), inv_scale=0.125, steps=3), R(shape=(64,), gdtype="bf16", steps=2)]
T("adadelta_update adamax_update amsgrad_update nadam_update radam_update asgd_update", *STEPS, *DECAY)
T("nadam_update radam_update", R(shape=(12,), steps=9, wd=0.1, decoupled=True, tag="decoupled"))
T("asgd_update", R(shape=(12,), steps=5, t0=2.0, tag="averaged"))
T("rprop_update", *STEPS, R(shape=(50,), steps=7, up=1.5, down=0.3, tag="other_factors"))
T("lion_update", *STEPS, R(shape=(40,), steps=4, wd=0.1, lr=0.01), R(shape=(33,), steps=3, resume=True))
T("ftrl_update", *STEPS, R(shape=(40,), steps=4, l1=0.5, l2=0.1))
T("proximal_gradient_update", *STEPS, R(shape=(40,), steps=4, l1=0.5, l2=0.1), R(shape=(40,), steps=3, prox="box", lo=-0.5, hi=0.75), lr=0.1)
T("unscale_grads", R(shapes=[(5,)]), R(shapes=[(5,), (3, 70)], scale=8.0), R(shapes=[(4,), (9,)], bad=float("inf")), R(shapes=[(4,), (9,)], scale=3.0, bad=float("nan")))
T("update_loss_scale", R(scale=65536.0, good=0, found=0.0), R(scale=65536.0, good=3, found=1.0), R(scale=1024.0, good=6, found=0.0, interval=7, tag="grows"),
  R(scale=1024.0, good=5, found=0.0, interval=7, tag="waits"))

for d in ("f32", "f16", "bf16"):
    T("add_relu add_sigmoid add_gelu", R(shape=(4, 33)), R(shape=(1031,)), R(shape=(0, 5)), dtype=d)
    T("max_abs min_abs max_abs_backward min_abs_backward log_var log_var_backward", R(shape=(3, 17), axes=[1]), R(shape=(4, 5, 6), axes=[0, 2], keepdim=True),
      R(shape=(33, 2), axes=[0]), dtype=d)
    T("sparse_2to4_compress sparse_2to4_prune", R(m=3, k=16), R(m=1, k=4), R(m=33, k=64), dtype=d)
    T("gemm_2to4", R(m=3, n=5, k=16), R(m=17, n=33, k=64), dtype=d)
SCENES = [R(n=1, width=16, height=12), R(n=40, width=50, height=41), R(n=300, width=64, height=48, spread=3.0), R(n=0, width=8, height=8)]
T("project_gaussians project_gaussians_backward", *SCENES)
T("project_gaussians", R(n=30, width=50, height=41, near=4.0, blur=0.0, tag="near"), R(n=3, width=8, height=8, blur=-1.0, err="invalid"))
T("project_gaussians_backward", R(n=7, width=50, height=41, acc=["dmeans", "dcovariance"], tag="accumulate"))
SPLATS = [R(n=1, width=16, height=16), R(n=40, width=33, height=20), R(n=300, width=50, height=41, channels=4), R(n=20, width=5, height=40, channels=9),
          R(n=60, width=24, height=24, opaque=True, tag="opaque"), R(n=0, width=8, height=8)]
T("rasterize_gaussians rasterize_gaussians_backward", *SPLATS)
T("rasterize_gaussians_backward", R(n=30, width=33, height=20, acc=["dcenters", "dconics", "dcolors", "dopacities"], tag="accumulate"))
MATRICES = [R(n=1), R(n=2), R(n=7, batch=(2,)), R(n=33), R(n=65), R(n=0), R(n=5, batch=(2, 3))]
T("ldl_factor", *MATRICES, R(n=6, empty=True))
T("ldl_solve ldl_solve_backward", R(n=1, k=1), R(n=7, k=3, batch=(2,)), R(n=33, k=40), R(n=65, k=2), R(n=4, k=0), R(n=5, k=1, batch=(2, 3)))
GAMMAS = [R(a=(4, 33), b=(4, 33)), R(a=(3, 1), b=(5,)), R(a=(300,), b=(1,)), R(a=(0, 5), b=(0, 5)), R(a=(40,), b=(40,), large=60.0, tag="large")]
T("igamma igammac igamma_backward igammac_backward", *GAMMAS)
INFINITY, NONE = float("inf"), float("nan")
T("igamma igammac", R(a=(12,), b=(12,), tag="ends", ends=[(0.0, 0.0), (0.0, 2.0), (2.0, 0.0), (INFINITY, 3.0), (3.0, INFINITY), (INFINITY, INFINITY), (-1.0, 2.0), (2.0, -1.0),
                                                            (NONE, 1.0), (1.0, NONE)]))
T("airy_ai", R(shape=(4, 33)), R(shape=(1031,)), R(shape=(0, 5)), R(shape=(40,), lo=-2.0, hi=2.5, tag="near"),
  R(shape=(9,), ends=[0.0, -8.0, 2.0, NONE, 30.0], tag="ends"))
T("log_var log_var_backward", R(shape=(3, 17), axes=[1], correction=0, eps=0.1, tag="other_eps"))
T("pdist_backward", R(n=5, k=7), R(n=9, k=3, p=1.0), R(n=6, k=4, p=3.0))
T("pairwise_distance_backward", R(shape=(5, 7)), R(shape=(3, 33), p=1.0, keepdim=True), R(shape=(2, 4), p=3.0))
T("scatter_mul scatter_mul_backward", R(rows=1, n=9, width=3, R=4), R(rows=2, n=30, width=5, R=7), R(rows=1, n=4, width=1, R=6))

GRIDS = [R(n=9, axes=3, table=(3, 40, 2), base=2, growth=1.5), R(n=33, axes=2, table=(4, 300, 4), base=4, growth=2.0),
         R(n=300, axes=3, table=(2, 4096, 1), base=16, growth=2.0), R(n=5, axes=2, table=(1, 7, 5), base=1, growth=1.0), R(n=0, axes=3, table=(2, 8, 2), base=1)]
T("hash_grid_encode hash_grid_encode_backward", *GRIDS)
T("hash_grid_encode", R(n=3, axes=2, table=(2, 8, 2), base=0, err="invalid"), R(n=3, axes=2, table=(30, 8, 2), base=16, growth=4.0, err="invalid", tag="too_fine"))
T("hash_grid_encode_backward", R(n=40, axes=3, table=(2, 64, 2), base=3, growth=2.0, acc=["dx", "dtable"], tag="accumulate"))
VOLUMES = [R(grid=(3, 4, 5, 2), n=9), R(grid=(9, 2, 33, 5), n=300), R(grid=(1, 4, 4, 3), n=20), R(grid=(2, 2, 2, 1), n=0)]
T("trilinear_interpolate trilinear_interpolate_backward", *VOLUMES)
T("trilinear_interpolate_backward", R(grid=(3, 4, 5, 2), n=9, acc=["dgrid", "dpoints"], tag="accumulate"))
SPHERES = [R(n=7, channels=3, count=k) for k in (1, 4, 9, 16, 25)] + [R(n=300, channels=1, count=25), R(n=0, channels=3, count=4)]
T("spherical_harmonics spherical_harmonics_backward", *SPHERES)
T("spherical_harmonics", R(n=3, channels=2, count=5, err="invalid"))
T("spherical_harmonics_backward", R(n=5, channels=2, count=9, acc=["dr", "dcoefficients"], tag="accumulate"))
T("gaussian_covariance gaussian_covariance_backward", R(n=1), R(n=7), R(n=300), R(n=0))
T("gaussian_covariance_backward", R(n=5, acc=["drotation", "dscale"], tag="accumulate"))
T("ray_sampling", R(n=5, samples=7), R(n=3, samples=64, seed=42), R(n=2, samples=5, seed=7, stream=3, offset=9), R(n=0, samples=4), R(n=4, samples=0))
T("importance_sampling", R(n=5, intervals=7, samples=9), R(n=3, intervals=64, samples=130, seed=42), R(n=2, intervals=5, samples=6, padding=0.25, seed=7, offset=9),
  R(n=3, intervals=1, samples=4), R(n=2, intervals=6, samples=4, none=True), R(n=2, intervals=3, samples=4, padding=-1.0, err="invalid"))
RAYS = [R(n=5, samples=7), R(n=3, samples=300, distances=True), R(n=40, samples=16, channels=1, distances=True), R(n=2, samples=5, channels=9), R(n=0, samples=4)]
T("volume_render volume_render_backward", *RAYS)
T("volume_render_backward", R(n=3, samples=5, distances=True, acc=["ddensity", "dcolor", "ddelta", "dt"], tag="accumulate"))
POOLS = [R(n=7, width=5, keep=3), R(n=300, width=33, keep=120, temperature=4.0, ties=True), R(n=40, width=1, keep=40, ties=True), R(n=5, width=4, keep=0)]
T("mesh_pool mesh_pool_backward", *POOLS)
T("mesh_pool", R(n=4, width=3, keep=5, err="invalid"), R(n=4, width=3, keep=2, temperature=0.0, err="invalid"))
T("mesh_pool_backward", R(n=9, width=4, keep=5, temperature=2.0, acc=["dx", "dw"], tag="accumulate"))
