/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of what engines exchange: messages, and the directory buckets, page heads and places
 * that they READ from each other. Every Hello carries it. Engines of different versions refuse each
 * other, and both log both versions. What clients share with the engine of their host has a number
 * of its own, ABI_VERSION.
 */
#ifndef ABI_WIRE_H
#define ABI_WIRE_H

#define WIRE_VERSION 5u

/*
 * Engines of this version (Hello.version was ABI_VERSION then) close the connection when versions
 * differ and say nothing. One that does not answer is asked once in its own version who it is: a
 * probe, a Hello with this version, `visit`, no members, and with the fields that version 5 added.
 */
#define WIRE_VERSION_MUTE 4u

#endif
