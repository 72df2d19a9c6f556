/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's member_greet.c with the next wire version, for test_agree.py. Everything else is the
 * same.
 */
#include "engine/abi/wire.h"

enum { WIRE_VERSION_OF_TREE = WIRE_VERSION };

#undef WIRE_VERSION
#define WIRE_VERSION (WIRE_VERSION_OF_TREE + 1u)

#include "engine/control/members/member_greet.c"
