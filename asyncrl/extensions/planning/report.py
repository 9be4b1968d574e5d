"""A prediction as text and as JSON."""

from __future__ import annotations

from typing import Any

from asyncrl.extensions.planning.predict import ESTIMATES, GIB, Device, Prediction


def as_text(prediction: Prediction) -> str:
    """Return the sums of each kind of GPU as a table, and the verdict."""
    lines = [prediction.placement]
    for device in prediction.devices:
        lines += ["", _heading(device)]
        lines += [
            f"  {item.name:<32}{item.bytes / GIB:>9.2f} GiB{'  (estimate)' if item.name in ESTIMATES else ''}"
            for item in device.items
        ]
        lines.append(f"  {'sum':<32}{device.bytes / GIB:>9.2f} GiB of {prediction.gpu / GIB:.2f}")
    lines.append("")
    moments = ", ".join(f"{name} {size / GIB:.2f}" for name, size in prediction.trainer.items())
    lines.append(f"trainer rank, GiB without estimates: {moments}")
    lines.append(
        f"engine: KV cache for {prediction.engine.kv_tokens:,} tokens, {prediction.engine.kv_per_token:,} bytes each"
    )
    lines += [f"host: {name}: {size / GIB:.2f} GiB" for name, size in prediction.host.items()]
    lines += [f"note: {note}" for note in prediction.notes]
    lines.append("")
    if prediction.fits:
        lines.append(f"fits: at most {prediction.peak / GIB:.2f} of {prediction.gpu / GIB:.2f} GiB")
    else:
        lines += [f"does not fit: {problem}" for problem in prediction.problems]
        lines.append(
            f"it would fit with: {' '.join(prediction.advice)}"
            if prediction.advice
            else "none of the changes that were tried makes it fit; take more or larger GPUs, or a smaller model"
        )
        lines += [f"           or with: {' '.join(words)}" for words in prediction.others]
    return "\n".join(lines)


def as_json(prediction: Prediction) -> dict[str, Any]:
    """Return the same as plain values; sizes in GiB."""
    return {
        "fits": prediction.fits,
        "peak_gib": _gib(prediction.peak),
        "gpu_gib": _gib(prediction.gpu),
        "gpus": prediction.gpus,
        "placement": prediction.placement,
        "devices": [
            {
                "gpus": device.gpus,
                "roles": device.roles,
                "moment": device.moment,
                "gib": {item.name: _gib(item.bytes) for item in device.items},
                "sum_gib": _gib(device.bytes),
            }
            for device in prediction.devices
        ],
        "estimates": list(ESTIMATES),
        "trainer_gib": {name: _gib(size) for name, size in prediction.trainer.items()},
        "engine": {
            "kv_tokens": prediction.engine.kv_tokens,
            "kv_bytes_per_token": prediction.engine.kv_per_token,
        },
        "host_gib": {name: _gib(size) for name, size in prediction.host.items()},
        "problems": prediction.problems,
        "notes": prediction.notes,
        "gpu_memory_utilization": prediction.utilization,
        "advice": prediction.advice,
        "other_advice": prediction.others,
    }


def _heading(device: Device) -> str:
    numbers = device.gpus
    name = f"GPU {numbers[0]}" if len(numbers) == 1 else f"GPUs {numbers[0]} to {numbers[-1]}, each"
    moment = f", at its peak ({device.moment})" if device.moment else ""
    return f"{name}: {' and '.join(device.roles)}{moment}"


def _gib(size: int) -> float:
    return round(size / GIB, 3)
