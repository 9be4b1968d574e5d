"""Maps the top-level folders `envs/` and `services/` to `asyncrl.envs` and `asyncrl.services`."""

from setuptools import find_packages, setup

OUTSIDE = ("envs", "services")

packages = find_packages(include=["asyncrl", "asyncrl.*"])
package_dir = {"asyncrl": "asyncrl"}
for folder in OUTSIDE:
    package_dir[f"asyncrl.{folder}"] = folder
    packages.append(f"asyncrl.{folder}")
    packages += [f"asyncrl.{folder}.{name}" for name in find_packages(folder)]

setup(
    packages=packages,
    package_dir=package_dir,
    package_data={"": ["*.toml", "*.yaml", "*.md", "*.json", "py.typed"]},
)
