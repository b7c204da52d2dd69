"""Great Expectations, and nothing outside of this folder imports it: that takes seconds.

It sends no usage data from here, whatever the environment says.
"""

import os

os.environ["GX_ANALYTICS_ENABLED"] = "False"
