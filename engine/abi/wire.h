/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of everything engines exchange: messages, and the directory buckets, page heads and
 * places that they READ from each other. Every Hello carries the range of versions that its sender
 * speaks; two engines speak the highest version of both ranges. Engines whose ranges have no
 * version in common refuse each other, and both log both ranges. The memory that clients share with
 * the engine of their host has its own version, ABI_VERSION, which two engines need not agree on.
 */
#ifndef ABI_WIRE_H
#define ABI_WIRE_H

/* The newest version that this engine speaks */
#define WIRE_VERSION 9u
/*
 * The oldest version that this engine speaks: the previous one, so that a cluster can be upgraded
 * engine by engine. An engine of version 8 is not compared with: it is sent all entries.
 */
#define WIRE_VERSION_OLDEST 8u

/* Since this version Digest and EntriesAsk (message.proto) are about slots of the map. */
#define WIRE_VERSION_SLOTS 9u

/*
 * The last version whose engines close a link without any answer when the versions differ (their
 * Hello.version is ABI_VERSION). To learn its name, an engine that does not answer is sent one
 * probe: a Hello with this version, with `visit` set and no members, plus the fields that version 5
 * added.
 */
#define WIRE_VERSION_MUTE 4u

#endif
