"""nbgrader and otter for tests: ask for the fixture `peers`.

Where tools/peers.sh has not been run the tests are skipped, and fail in a complete run.
"""

from types import ModuleType

import pytest

from tests.support import peers as installed


@pytest.fixture(scope="session")
def peers(request: pytest.FixtureRequest) -> ModuleType:
    if not installed.present():
        if request.config.getoption("--complete"):
            pytest.fail(installed.ADVICE, pytrace=False)
        pytest.skip(installed.ADVICE)
    return installed
