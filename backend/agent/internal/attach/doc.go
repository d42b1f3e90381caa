// SPDX-License-Identifier: Apache-2.0

// Package attach is where liblanetrace.so is tested as it is used: loaded into
// programs that know nothing of it, over the stand-in driver, its ring then read
// by the same code as any other. It has nothing to import.
package attach
