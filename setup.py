"""Packaging. The tools' settings are in pyproject.toml."""

from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

# contexts/ and middleware/ stand at the top of the repository and are imported as ding_lite.contexts and
# ding_lite.middleware. In a checkout two links inside ding_lite/ lead to them; in a distribution this mapping does.
MOVED = {"ding_lite.contexts": "contexts", "ding_lite.middleware": "middleware"}

version = next(
    line.split('"')[1]
    for line in (ROOT / "ding_lite/__init__.py").read_text(encoding="utf-8").splitlines()
    if line.startswith("__version__")
)

setup(
    name="ding_lite",
    version=version,
    description="Reinforcement-learning training loops as checked pipelines of middleware over one context.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.13",  # treevalue, below DI-treetensor, has no wheels for 3.13
    packages=sorted({*find_packages(include=["ding_lite", "ding_lite.*"]), *MOVED}),
    package_dir={"ding_lite": "ding_lite", **MOVED},
    package_data={"ding_lite": ["py.typed"], "ding_lite.reports": ["*.html"]},
    entry_points={"console_scripts": ["ding-lite = ding_lite.commands:main"]},
    install_requires=["torch>=2.6", "gymnasium>=1.1,<2", "numpy>=1.26", "DI-treetensor>=0.5"],
    extras_require={
        "cli": ["tyro>=1.0", "rich>=13", "psutil>=5.9"],
        "plot": ["matplotlib>=3.8", "Jinja2>=3.1"],
        "tb": ["tensorboard>=2.14", "google-crc32c>=1.5"],
        "wandb": ["wandb>=0.20"],
        "video": ["imageio-ffmpeg>=0.5", "pygame-ce>=2.3"],
        "atari": ["ale-py>=0.11", "opencv-python-headless>=4.8"],  # opencv resizes frames
        "box2d": ["box2d>=2.3.10"],
        "mujoco": ["mujoco>=3.1,<3.12", "imageio>=2.14"],  # FetchReach of gymnasium-robotics fails with 3.12
        "robotics": ["gymnasium-robotics>=1.4", "mujoco>=3.1,<3.12"],
        "agents": ["pettingzoo>=1.24.3", "mpe2>=1.0"],
        "offline": ["minari[hdf5]>=0.5", "h5py>=3.8"],
        "ray": ["ray[tune]>=2.50"],
        "storage": ["pyarrow>=17", "fsspec>=2023.6"],  # fsspec opens what pyarrow does not
        "export": ["onnx>=1.17", "onnxscript>=0.3", "onnxruntime>=1.20"],
        "test": [
            *("pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "hypothesis>=6.100", "psutil>=5.9"),
            *("setuptools>=68", "wheel"),  # build the wheel that is tested
            "playwright>=1.48",  # drives the Chromium that the machine has
        ],
        "dev": ["ruff>=0.9", "mypy>=1.13"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
