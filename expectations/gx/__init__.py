"""Run Great Expectations; nothing outside of this folder imports it, since that takes seconds.

It sends no usage data from here, whatever the environment asks for.
"""

import os

os.environ["GX_ANALYTICS_ENABLED"] = "False"
