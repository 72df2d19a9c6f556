/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of everything engines exchange: messages, and the directory buckets, page heads and
 * places that they READ from each other. Every Hello carries it. Engines of different versions
 * refuse each other, and both log both versions. The memory that clients share with the engine of
 * their host has its own version, ABI_VERSION.
 */
#ifndef ABI_WIRE_H
#define ABI_WIRE_H

#define WIRE_VERSION 5u

/*
 * The last version whose engines close a link without any answer when the versions differ (their
 * Hello.version is ABI_VERSION). To learn its name, an engine that does not answer is sent one
 * probe: a Hello with this version, with `visit` set and no members, plus the fields that version 5
 * added.
 */
#define WIRE_VERSION_MUTE 4u

#endif
