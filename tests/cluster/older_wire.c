/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's member_greet.c as of wire version 6, for test_agree.py: an engine that is linked
 * with this file speaks version 6 only, and announces the previous ABI version to other engines.
 * Everything else is the same.
 */
#include "engine/abi/segment.h"
#include "engine/abi/wire.h"

static const unsigned abi_of_tree = ABI_VERSION;

#undef WIRE_VERSION
#define WIRE_VERSION WIRE_VERSION_OLDEST
#undef ABI_VERSION
#define ABI_VERSION (abi_of_tree - 1)

#include "engine/control/members/member_greet.c"
