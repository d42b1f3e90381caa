// Command smi compares what lanetrace serves of a GPU with what nvidia-smi prints in
// the same second: it scrapes /metrics, runs nvidia-smi, scrapes again, and prints both
// beside each other. What nvidia-smi says of power ten times a second is added up beside
// the energy counter. docs/device.md has what it said of an H200.
package main
