# SPDX-License-Identifier: Apache-2.0
"""SGLang as far as peercachectl trial needs it."""
