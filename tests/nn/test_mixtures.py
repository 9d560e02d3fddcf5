import math
import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from support.numbers import TIGHT, randn
from torch.testing import assert_close

from fedtune.nn.fusion import LINKAGES, bhattacharyya, fuse, pairwise
from fedtune.nn.mixtures import Mixtures, _centre, _iterate, fit, sample

FLOOR = 1e-3


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rand(*shape, seed=0):
    return torch.rand(*shape, dtype=torch.float64, generator=rng(seed))


def blobs(problems=6, rows=60, features=5, seed=0):
    """[J, N, D]: three overlapping lumps each, far from the origin."""
    centres = 2 * randn(problems, 3, features, seed=seed)
    return centres[:, torch.arange(rows) % 3] + randn(problems, rows, features, seed=seed + 1) + 7


def random_start(x, n=3, seed=5):
    """Any start will do, so take rows as means."""
    return Mixtures(
        torch.full((len(x), n), 1 / n, dtype=x.dtype),
        x[:, seed : seed + n].clone(),
        x.var(1, keepdim=True).repeat(1, n, 1),
    )


def em(x, mask, start, lowest, iterations=100, tol=1e-3):
    """`fit`'s EM alone, from this start: the mixtures and their mean log-likelihood per row."""
    centre, rows = _centre(x, mask)
    start = start._replace(means=start.means - centre)
    mixture, quality = _iterate(rows, mask, start, lowest, iterations, tol)
    return mixture._replace(means=mixture.means + centre), quality


def log_likelihood(mixture, x):
    """Log-density [..., N] of rows x [..., N, D], by the definition (Eq. 4 of GFPL)."""
    weights, means, variances = mixture
    gap = (x[..., :, None, :] - means[..., None, :, :]).square() / variances[..., None, :, :]
    each = -(gap + (2 * math.pi * variances[..., None, :, :]).log()).sum(-1) / 2
    return (weights.log()[..., None, :] + each).logsumexp(-1)


def everyone(x):
    return torch.ones(x.shape[:2], dtype=torch.bool)


def no_floor(x):
    return torch.full((len(x),), 1e-9, dtype=x.dtype)


def clients(seed=0):
    """Three clients, four classes of 23, 9, 1 and 0 rows in shuffled places, and 7 rows of padding."""
    y = torch.tensor([0] * 23 + [1] * 9 + [2] + [-1] * 7)
    y = torch.stack([y[torch.randperm(40, generator=rng(seed + k))] for k in range(3)])
    z = randn(3, 40, 6, seed=seed) + y[..., None] + 3
    return z, y[:, None] == torch.arange(4)[:, None], rand(3, 4, 4, seed=seed + 9)


def sklearn_fit(x, start, iterations, tol):
    model = GaussianMixture(
        start.weights.shape[-1],
        covariance_type="diag",
        reg_covar=0,
        max_iter=iterations,
        tol=tol,
        init_params="random",
        random_state=0,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy(),
        precisions_init=(1 / start.variances).numpy(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return model.fit(x.numpy())


@pytest.mark.parametrize("iterations, tol", [(1, 0.0), (7, 0.0), (2000, 1e-10)])
def test_em_is_scikit_learns_from_the_same_start(iterations, tol):
    x = blobs()
    start = random_start(x)
    got, quality = em(x, everyone(x), start, no_floor(x), iterations, tol)
    atol = 1e-10 if tol == 0 else 1e-3  # run to the end, both stop somewhere on the same flat top
    for j in range(len(x)):
        want = sklearn_fit(x[j], Mixtures(*(t[j] for t in start)), iterations, tol)
        assert abs(quality[j] - want.score(x[j].numpy())) < (1e-10 if tol == 0 else 1e-6)
        for mine, theirs in zip(got, (want.weights_, want.means_, want.covariances_), strict=True):
            assert_close(mine[j], torch.from_numpy(theirs), rtol=0, atol=atol)


@pytest.mark.parametrize("lowest", [1e-9, 0.8])
def test_likelihood_never_decreases_not_even_at_the_floor(lowest):
    x = blobs()
    mask, start, floor = everyone(x), random_start(x), torch.full((6,), lowest, dtype=torch.float64)
    start = start._replace(variances=start.variances.clamp_min(lowest))
    path = torch.stack([em(x, mask, start, floor, t, 0.0)[1] for t in range(40)])
    assert (path.diff(dim=0) > -1e-12).all() and (path[-1] > path[0]).all()


def test_reported_likelihood_is_that_of_the_mixture_returned():
    x = blobs()
    got, quality = em(x, everyone(x), random_start(x), no_floor(x))
    assert_close(quality, log_likelihood(got, x).mean(1), **TIGHT)
    normal = torch.distributions.Normal(got.means[:, None], got.variances[:, None].sqrt())
    want = (got.weights[:, None] * normal.log_prob(x[:, :, None]).sum(-1).exp()).sum(-1).log()
    assert_close(log_likelihood(got, x), want, **TIGHT)


def test_no_iterations_return_the_start():
    x = blobs()
    start = random_start(x)
    for mine, given in zip(em(x, everyone(x), start, no_floor(x), 0)[0], start, strict=True):
        assert_close(mine, given, **TIGHT)


def test_padding_changes_nothing_and_every_problem_is_alone():
    x = blobs()
    start, counts = random_start(x), torch.tensor([60, 20, 35, 50, 41, 60])
    mask = torch.arange(60) < counts[:, None]
    together = em(x.masked_fill(~mask[..., None], 1e3), mask, start, no_floor(x))
    for j, count in enumerate(counts):
        rows = x[j : j + 1, :count]
        alone = em(rows, everyone(rows), Mixtures(*(t[j : j + 1] for t in start)), no_floor(rows))
        for mine, theirs in zip((*together[0], together[1]), (*alone[0], alone[1]), strict=True):
            assert_close(mine[j : j + 1], theirs, **TIGHT)


def test_a_component_nobody_belongs_to_dies_without_a_nan():
    x = blobs()
    start = random_start(x)
    start.means[:, 0] += 1e4
    got, quality = em(x, everyone(x), start, no_floor(x))
    assert all(t.isfinite().all() for t in (*got, quality))
    assert (got.weights[:, 0] == 0).all() and (got.variances > 0).all()
    two = em(
        x,
        everyone(x),
        Mixtures(*(t[:, 1:] for t in start))._replace(weights=torch.full((6, 2), 0.5, dtype=torch.float64)),
        no_floor(x),
    )
    assert_close(got.weights[:, 1:], two[0].weights, rtol=0, atol=1e-9)


def test_stacked_clients_are_fitted_as_one_at_a_time():
    z, member, noise = clients()
    stacked = torch.func.vmap(lambda *args: fit(*args, 4, FLOOR))(z, member, noise)
    for k in range(3):
        for mine, theirs in zip(stacked, fit(z[k], member[k], noise[k], 4, FLOOR), strict=True):
            assert_close(mine[k], theirs, **TIGHT)


def test_vmap_takes_any_axis_shared_tensors_and_nesting():
    z, member, noise = clients()
    want = [fit(z[0], member[k], noise[k], 4, FLOOR) for k in range(3)]
    one = torch.func.vmap(lambda m, u: fit(z[0], m, u, 4, FLOOR), in_dims=(2, 0))(member.permute(1, 2, 0), noise)
    two = torch.func.vmap(torch.func.vmap(lambda m, u: fit(z[0], m, u, 4, FLOOR)))(member[None], noise[None])
    for k in range(3):
        for a, b, c in zip(want[k], one, two, strict=True):
            assert_close(b[k], a, **TIGHT)
            assert_close(c[0, k], a, **TIGHT)


def test_many_problems_are_cut_into_groups_without_a_trace(monkeypatch):
    z, member, noise = clients()
    whole = fit(z[0], member[0], noise[0], 4, FLOOR)
    monkeypatch.setattr("fedtune.nn.mixtures._NUMBERS", 1)
    for mine, theirs in zip(fit(z[0], member[0], noise[0], 4, FLOOR), whole, strict=True):
        assert_close(mine, theirs, **TIGHT)


def test_padding_rows_and_the_other_classes_do_not_matter():
    z, member, noise = (t[0] for t in clients())
    want = fit(z, member, noise, 4, FLOOR)
    strange = fit(z.masked_fill(~member.any(0)[:, None], 1e6), member, noise, 4, FLOOR)
    own = fit(z[member[0]], torch.ones(1, 23, dtype=torch.bool), noise[:1], 4, FLOOR)
    for a, b, c in zip(want, strange, own, strict=True):
        assert_close(b, a, **TIGHT)
        assert_close(c, a[:1], **TIGHT)


def test_number_of_components_follows_the_number_of_rows():
    y = torch.arange(8).repeat_interleave(torch.tensor([0, 1, 9, 10, 14, 15, 20, 60]))
    got = fit(randn(len(y), 3), y == torch.arange(8)[:, None], rand(8, 4), 4, FLOOR)
    assert (got.weights > 0).sum(1).tolist() == [0, 1, 1, 2, 2, 3, 4, 4]
    assert_close(got.weights.sum(1), torch.tensor([0.0] + [1.0] * 7, dtype=torch.float64), **TIGHT)
    assert all(t.isfinite().all() for t in got) and (got.variances > 0).all()


def test_a_single_row_and_equal_rows_rest_on_the_floor():
    z = torch.cat([randn(1, 3), randn(1, 3, seed=1).expand(20, 3)])
    got = fit(z, torch.stack([torch.arange(21) < 1, torch.arange(21) >= 1]), rand(2, 4), 4, FLOOR)
    assert got.weights.tolist() == [[1, 0, 0, 0]] * 2  # equal rows have one place to put a seed
    assert_close(got.means[:, 0], z[:2], **TIGHT)
    assert_close(got.variances, torch.full_like(got.variances, 1e-6), **TIGHT)


def test_floor_is_a_share_of_the_mean_variance_of_the_class():
    z = randn(40, 5) * torch.tensor([3.0, 1, 1, 1, 0])  # one feature never varies
    got = fit(z, torch.ones(1, 40, dtype=torch.bool), rand(1, 4), 4, 0.05)
    assert_close(got.variances.min(), 0.05 * z.var(0, correction=0).mean(), **TIGHT)


def test_separate_lumps_are_found():
    z = torch.cat([randn(30, 4), randn(10, 4, seed=1) + 50])
    got = fit(z, torch.ones(1, 40, dtype=torch.bool), rand(1, 2), 2, 1e-5)
    big = got.weights[0].argmax()
    assert_close(got.weights[0].sort().values, torch.tensor([0.25, 0.75], dtype=torch.float64), **TIGHT)
    assert_close(got.means[0, big], z[:30].mean(0), **TIGHT)
    assert_close(got.variances[0, 1 - big], z[30:].var(0, correction=0), rtol=0, atol=1e-11)


def test_fit_keeps_the_dtype_and_has_no_gradient():
    z, member, noise = (t[0] for t in clients())
    got = fit(z.float().requires_grad_(), member, noise.float(), 4, FLOOR)
    assert all(t.dtype == torch.float32 and not t.requires_grad for t in got)


def gaussians(count=7, features=5, seed=0):
    return randn(count, features, seed=seed), rand(count, features, seed=seed + 1) + 0.1


def test_distance_is_eq_8_on_diagonal_matrices():
    (ma, va), (mb, vb) = gaussians(), gaussians(seed=2)
    middle = torch.diag_embed((va + vb) / 2)
    gap = (ma - mb)[..., None]
    want = (gap.mT @ torch.linalg.solve(middle, gap)).flatten() / 8 + 0.5 * (
        torch.logdet(middle) - 0.5 * (torch.logdet(torch.diag_embed(va)) + torch.logdet(torch.diag_embed(vb)))
    )
    assert_close(bhattacharyya(ma, va, mb, vb), want, **TIGHT)


def test_all_pairs_are_symmetric_zero_on_the_diagonal_and_equal_to_single_ones():
    m, v = gaussians(19)
    got = pairwise(m, v)
    assert torch.equal(got, got.T) and not got.diag().any()
    assert_close(got, bhattacharyya(m[:, None], v[:, None], m, v), **TIGHT)


def chain():
    """Unit Gaussians at 0, 2, 4 on a line: D_B is 1/2 between neighbours, 2 from end to end.  The seed is at 2."""
    return (
        torch.tensor([2.0, 3.0, 1.0], dtype=torch.float64),
        torch.tensor([[0.0], [2.0], [4.0]]).double(),
        torch.ones(3, 1, dtype=torch.float64),
    )


@pytest.mark.parametrize("linkage", LINKAGES)
def test_fusing_all_gives_the_moments_of_the_pooled_rows(linkage):
    parts = [randn(n, 4, seed=n) * n**0.5 for n in (3, 8, 20)]
    got, labels = fuse(
        torch.tensor([3.0, 8.0, 20.0]).double(),
        torch.stack([p.mean(0) for p in parts]),
        torch.stack([p.var(0, correction=0) for p in parts]),
        math.inf,
        linkage,
    )
    pooled = torch.cat(parts)
    assert_close(got.weights, torch.tensor([31.0]).double(), **TIGHT)
    assert_close(got.means[0], pooled.mean(0), **TIGHT)
    assert_close(got.variances[0], pooled.var(0, correction=0), rtol=0, atol=1e-11)
    assert labels.tolist() == [0, 0, 0]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_threshold_zero_only_sorts(linkage):
    weights, means, variances = chain()
    means[2] = means[0]  # at distance 0, which is not smaller than 0
    got, labels = fuse(weights, means, variances, 0.0, linkage)
    assert labels.tolist() == [1, 0, 2]
    assert torch.equal(got.weights[labels], weights) and torch.equal(got.means[labels], means)


@pytest.mark.parametrize(
    "linkage, weights, labels",
    [
        ("ball", [2, 3, 1], [0, 0, 0]),  # both ends are close to the seed in the middle
        ("complete", [2, 3, 1], [0, 0, 1]),  # the heavier end joins first, the other is far from it
        ("single", [2, 3, 1], [0, 0, 0]),
        ("ball", [3, 2, 1], [0, 0, 1]),  # now the seed is an end
        ("complete", [3, 2, 1], [0, 0, 1]),
        ("single", [3, 2, 1], [0, 0, 0]),  # and the chain still reaches the other
        ("complete", [1, 3, 1], [0, 0, 1]),  # a tie: the earlier client
    ],
)
def test_linkages_on_a_chain_of_three(linkage, weights, labels):
    _, means, variances = chain()
    got, found = fuse(torch.tensor(weights).double(), means, variances, 0.6, linkage)
    assert found.tolist() == labels
    assert_close(got.weights, torch.zeros_like(got.weights).index_add(0, found, torch.tensor(weights).double()))


def test_a_distance_equal_to_the_threshold_does_not_fuse():
    _, labels = fuse(*chain(), threshold=0.5)
    assert labels.tolist() == [1, 0, 2]


@pytest.mark.parametrize("linkage", LINKAGES)
def test_arrival_order_does_not_matter(linkage):
    weights, (means, variances) = rand(30, seed=4), gaussians(30)
    want, labels = fuse(weights, means, variances, 0.8, linkage)
    assert 1 < len(want.weights) < 30
    for seed in range(5):
        order = torch.randperm(30, generator=rng(seed))
        got, moved = fuse(weights[order], means[order], variances[order], 0.8, linkage)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)) and torch.equal(moved, labels[order])


def test_linkages_keep_their_promises():
    weights, (means, variances) = rand(30, seed=4), gaussians(30)
    near = pairwise(means, variances) < 0.8
    clusters = {linkage: fuse(weights, means, variances, 0.8, linkage)[1] for linkage in LINKAGES}
    for c in clusters["complete"].unique():
        members = clusters["complete"] == c
        assert near[members][:, members].all()
    for c in clusters["ball"].unique():
        members = (clusters["ball"] == c).nonzero()[:, 0]
        assert near[members[weights[members].argmax()], members].all()
    same = clusters["single"][:, None] == clusters["single"]
    assert not (near & ~same).any()
    assert clusters["single"].max() < clusters["ball"].max() < clusters["complete"].max()


def test_absent_components_are_left_out_and_nothing_may_arrive():
    weights, means, variances = chain()
    weights[1] = 0
    got, labels = fuse(weights, means, variances, 0.6)
    assert labels.tolist() == [0, -1, 1] and got.weights.tolist() == [2, 1]
    got, labels = fuse(weights * 0, means, variances, 0.6)
    assert [t.shape for t in got] == [(0,), (0, 1), (0, 1)] and labels.tolist() == [-1] * 3


def test_unknown_linkage_is_refused():
    with pytest.raises(ValueError, match="complete, ball, single; got 'ward'"):
        fuse(*chain(), threshold=1.0, linkage="ward")


def test_uniforms_pick_by_inverse_cdf_and_never_an_absent_component():
    mixture = Mixtures(
        torch.tensor([[0.0, 3.0, 0.0, 1.0, 0.0]]).double(),
        torch.arange(5.0).double()[None, :, None],
        torch.ones(1, 5, 1, dtype=torch.float64),
    )
    u = torch.tensor([[0.0, 0.7499, 0.75, 1 - 2**-53, 1.0]]).double()  # 1.0 is what rounding might make of it
    assert sample(mixture, u, torch.zeros(1, 5, 1).double()).flatten().tolist() == [1, 1, 3, 3, 3]


def test_a_class_without_components_yields_finite_rows():
    mixture = fit(randn(5, 3), torch.zeros(2, 5, dtype=torch.bool), rand(2, 4), 4, FLOOR)
    assert not mixture.weights.any() and all(t.isfinite().all() for t in mixture)
    assert sample(mixture, rand(2, 9), randn(2, 9, 3)).isfinite().all()


@pytest.mark.parametrize("shared", [True, False])
def test_sampling_stacked_clients_is_sampling_each(shared):
    weights, means, variances = rand(3, 2, 4), randn(3, 2, 4, 5), rand(3, 2, 4, 5)
    each = [Mixtures(*(t[0 if shared else k] for t in (weights, means, variances))) for k in range(3)]
    u, normal = rand(3, 2, 6), randn(3, 2, 6, 5)
    given, dims = (each[0], None) if shared else (Mixtures(weights, means, variances), 0)
    got = torch.func.vmap(sample, in_dims=(dims, 0, 0))(given, u, normal)
    for k in range(3):
        assert_close(got[k], sample(each[k], u[k], normal[k]), **TIGHT)
