/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of everything engines exchange: messages, and the directory buckets, page heads and
 * places that they READ from each other. Every Hello carries it. Engines of different versions
 * refuse each other, and both log both versions. The memory that clients share with the engine of
 * their host has its own version, ABI_VERSION (segment.h), which other engines need not know.
 */
#ifndef ABI_WIRE_H
#define ABI_WIRE_H

#define WIRE_VERSION 21u

#endif
