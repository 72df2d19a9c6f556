/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's member.c with another version of the program, for test_named.py: an engine that is
 * linked with this file announces version 9.8.7 to other engines. Everything else is the same.
 */
#include "config/version.h"

#undef PEERCACHE_VERSION
#define PEERCACHE_VERSION "9.8.7"

#include "engine/control/members/member.c"
