import numpy as np
import torch
from torchvision.transforms import v2

from ddltrain.input import _image
from ddltrain.input.decode import BatchDecoder, eval_sampling
from ddltrain.recipe import DataRecipe
from ddltrain.train.inputs import Normalizer, output_for

RECIPE = DataRecipe(image_size=16, eval_crop=1.0)
CPU = torch.device("cpu")


def test_pixels_reach_the_network_as_torchvision_would_give_them() -> None:
    batch = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    ours = Normalizer(RECIPE, CPU, channels_last=True)(batch)
    theirs = v2.Normalize(list(RECIPE.mean), list(RECIPE.std))(
        v2.functional.to_dtype(batch, torch.float32, scale=True)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert ours.is_contiguous(memory_format=torch.channels_last)


def test_what_the_decoder_gives_a_cpu_is_what_the_device_would_make_of_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    record = np.frombuffer(_image.pack_pixels(pixels), np.uint8)
    results = []
    for output in (output_for(CPU, RECIPE), output_for(torch.device("cuda"), RECIPE)):
        sampling = eval_sampling(RECIPE, output)
        batch = sampling.empty_batch(1)
        with BatchDecoder(1) as decoder:
            places = [np.array([value]) for value in (0, len(record), 0)]
            decoder.submit(record, *places, sampling, 0, 0, batch).wait()
        results.append(Normalizer(RECIPE, CPU, channels_last=True)(batch))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)
