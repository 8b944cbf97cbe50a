import torch
from hypothesis import given
from hypothesis import strategies as st

from ddltrain.train.evaluate import _judge


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 1 << 30))
def test_figures_are_those_of_topk_and_softmax(num_images: int, num_classes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(num_images, num_classes, generator=generator)
    labels = torch.randint(num_classes, (num_images,), generator=generator)
    predictions, places, losses, confidences = _judge(scores, labels)
    assert torch.equal(predictions.long(), scores.argmax(dim=1))
    for depth in (1, min(5, num_classes)):
        right = (scores.topk(depth).indices == labels[:, None]).any(dim=1)
        assert torch.equal(places < depth, right)
    torch.testing.assert_close(
        losses, -scores.double().log_softmax(dim=1).gather(1, labels[:, None])[:, 0], atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        confidences, scores.double().softmax(dim=1).max(dim=1).values, atol=1e-6, rtol=1e-5
    )


def test_of_equal_scores_the_lower_class_wins_so_that_one_label_at_most_is_right() -> None:
    scores = torch.zeros(4, 4)
    predictions, places, _, _ = _judge(scores, torch.arange(4))
    assert places.tolist() == [0, 1, 2, 3]
    assert predictions.tolist() == [0, 0, 0, 0]


def test_scores_that_are_not_numbers_are_never_right() -> None:
    scores = torch.tensor([[float("nan"), 1.0], [float("nan"), float("nan")], [1.0, float("nan")]])
    places = _judge(scores, torch.tensor([0, 1, 0]))[1]
    assert (places >= 1).all()
